"""Collect the facts of a set from its manifest and its recipe, as plain values.

The recipe is a JSON object that others may have written. A value of an unexpected type is left out, never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

from shards.format.manifest import Manifest, MixEntry
from shards.format.reader import ShardSet

MAX_LINE = 300
"""Characters of a list in one line; the items of a longer one are listed one by one."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

_KEYS_SHOWN_APART = ("name", "kind", "weight", "paths", "repo", "config", "split", "revision", "license")


@dataclass(frozen=True)
class SourceFacts:
    """One source. Token counts include EOS; `documents` and `tokens` count the training split."""

    name: str
    kind: str
    places: list[str]
    """Paths, or the Hub's repository with its configuration and split, as the recipe states them."""
    revision: str
    license: str | None
    settings: dict[str, str]
    """Its other keys in the recorded recipe that have a value, as JSON. A resolved recipe does not say which of them
    were set and which are defaults."""
    weight: float
    requested: float
    achieved: float
    requested_tokens: int
    tokens: int
    documents: int
    val_tokens: int
    val_documents: int
    tokens_available: int
    documents_available: int
    unread_files: int
    unread_bytes: int
    dropped: dict[str, int]
    epochs: int


@dataclass(frozen=True)
class PhaseFacts:
    """One phase of the mix: its part of the training tokens, its totals, and its rows of the mix."""

    name: str
    share: float
    requested_tokens: int
    tokens: int
    documents: int
    shards: int
    mix: list[MixEntry]


@dataclass(frozen=True)
class ShardFacts:
    """One shard: tokens, documents, and bytes of its three files."""

    name: str
    split: str
    tokens: int
    documents: int
    tokens_bytes: int
    bytes: int
    phase: str | None = None


@dataclass(frozen=True)
class SplitFacts:
    """Totals of a split."""

    requested_tokens: int
    tokens: int
    documents: int
    shards: int


@dataclass(frozen=True)
class TokenizerFacts:
    """The tokenizer, without its entries."""

    vocab_size: int
    dtype: str
    sha256: str
    eos: str
    special_tokens: dict[str, int]
    settings: dict[str, str]
    """Its keys in the recorded recipe that have a value, as JSON, defaults included."""


@dataclass(frozen=True)
class SetFacts:
    """A whole set."""

    name: str
    manifest_sha256: str
    recipe_sha256: str
    recipe_file: str
    recipe_text: str
    tokens: int
    documents: int
    bytes: int
    """Bytes of all files of the set, the manifest included."""
    tokens_bytes: int
    splits: dict[str, SplitFacts]
    sources: list[SourceFacts]
    tokenizer: TokenizerFacts
    shards: list[ShardFacts] = field(default_factory=list[ShardFacts])
    phases: list[PhaseFacts] = field(default_factory=list[PhaseFacts])
    """In the order of training; empty in a set without phases."""

    @property
    def rebuildable(self) -> bool:
        """Whether the recipe names sources that a build reads: files, or the Hub."""
        return bool(self.sources) and all(source.kind in ("files", "hub") for source in self.sources)


def describe_facts(shard_set: ShardSet) -> SetFacts:
    """Return the facts of a set.

    Raises:
        OSError: a metadata file cannot be read.
    """
    manifest = shard_set.manifest
    recipe_text = shard_set.store.read(manifest.recipe.file).decode("utf-8", "backslashreplace")
    recipe = _read_recipe(recipe_text)
    shards = [
        ShardFacts(
            entry.name,
            entry.split,
            entry.tokens,
            entry.documents,
            entry.files.tokens.bytes,
            entry.files.tokens.bytes + entry.files.documents.bytes + entry.files.metadata.bytes,
            entry.phase,
        )
        for entry in manifest.shards
    ]
    others = ("manifest.json", manifest.recipe.file, manifest.tokenizer.file)
    return SetFacts(
        name=manifest.name,
        manifest_sha256=shard_set.manifest_sha256,
        recipe_sha256=manifest.recipe.sha256,
        recipe_file=manifest.recipe.file,
        recipe_text=recipe_text,
        tokens=sum(shard.tokens for shard in shards),
        documents=sum(shard.documents for shard in shards),
        bytes=sum(shard.bytes for shard in shards) + sum(shard_set.store.size(name) for name in others),
        tokens_bytes=sum(shard.tokens_bytes for shard in shards),
        splits={
            name: SplitFacts(split.requested_tokens, split.tokens, split.documents, len(shard_set.splits[name]))
            for name, split in manifest.splits.items()
        },
        sources=_describe_sources(manifest, recipe),
        tokenizer=_describe_tokenizer(manifest, recipe),
        shards=shards,
        phases=[
            PhaseFacts(
                phase.name,
                phase.share,
                phase.requested_tokens,
                phase.tokens,
                phase.documents,
                sum(shard.phase == phase.name for shard in shards),
                phase.mix,
            )
            for phase in manifest.phases
        ],
    )


def _describe_sources(manifest: Manifest, recipe: dict[str, Any]) -> list[SourceFacts]:
    listed = recipe.get("sources")
    stated: dict[str, dict[str, Any]] = {}
    for item in cast("list[Any]", listed) if isinstance(listed, list) else []:
        own = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        if (name := _text(own.get("name"))) is not None:
            stated[name] = own
    mix = {row.source: row for row in manifest.mix}
    facts: list[SourceFacts] = []
    for source in manifest.sources:
        own, row = stated.get(source.name, {}), mix.get(source.name)
        train, val = (
            manifest.splits[split].sources.get(source.name) if split in manifest.splits else None
            for split in ("train", "val")
        )
        facts.append(
            SourceFacts(
                name=source.name,
                kind=_text(own.get("kind")) or "not stated",
                places=_places(own),
                revision=source.revision,
                license=_text(own.get("license")),
                settings=_list_settings(own, _KEYS_SHOWN_APART),
                weight=source.weight,
                requested=row.requested if row else 0.0,
                achieved=row.achieved if row else 0.0,
                requested_tokens=row.requested_tokens if row else 0,
                tokens=train.tokens if train else 0,
                documents=train.documents if train else 0,
                val_tokens=val.tokens if val else 0,
                val_documents=val.documents if val else 0,
                tokens_available=source.tokens_available,
                documents_available=source.documents_available,
                unread_files=source.unread_files,
                unread_bytes=source.unread_bytes,
                dropped={reason: count for reason, count in source.dropped.items() if count},
                epochs=source.epochs,
            )
        )
    return facts


def _describe_tokenizer(manifest: Manifest, recipe: dict[str, Any]) -> TokenizerFacts:
    entry = manifest.tokenizer
    section = recipe.get("tokenizer")
    keys = cast("dict[str, Any]", section) if isinstance(section, dict) else {}
    eos = next((text for text, token in entry.special_tokens.items() if token == entry.eos_id), "")
    shown = {"special_tokens", "eos_token", "vocab_size"}
    if keys.get("file") is not None:
        shown.add("sample_bytes")
    settings = _list_settings(keys, shown)
    return TokenizerFacts(manifest.vocab_size, manifest.dtype, entry.sha256, eos, entry.special_tokens, settings)


def _read_recipe(text: str) -> dict[str, Any]:
    try:
        recipe: Any = json.loads(text)
    except (ValueError, RecursionError):  # the format requires JSON only because readers of sources need it
        return {}
    return cast("dict[str, Any]", recipe) if isinstance(recipe, dict) else {}


def _places(source: dict[str, Any]) -> list[str]:
    paths = source.get("paths")
    places = [path for path in cast("list[Any]", paths) if isinstance(path, str)] if isinstance(paths, list) else []
    if repo := _text(source.get("repo")):
        parts = [part for key in ("config", "split") if (part := _text(source.get(key)))]
        places.append(f"{repo} ({', '.join(parts)})" if parts else repo)
    return places


def _list_settings(keys: dict[str, Any], left_out: Collection[str] = (), *, depth: int = 3) -> dict[str, str]:
    """Return the keys that have a value, as JSON; keys of tables within by their names in TOML, `clean.c4.when`."""
    found: dict[str, str] = {}
    for key, value in keys.items():
        if key in left_out or value in (None, [], {}, ""):
            continue
        name = key if _BARE_KEY.fullmatch(key) else json.dumps(key)
        if isinstance(value, dict) and depth > 1:
            inner = _list_settings(cast("dict[str, Any]", value), depth=depth - 1)
            found |= {f"{name}.{more}": text for more, text in inner.items()}
        elif isinstance(value, list) and len(json.dumps(value)) > MAX_LINE:
            found |= {f"{name}[{number}]": json.dumps(item) for number, item in enumerate(cast("list[Any]", value))}
        else:
            found[name] = json.dumps(value)
    return found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None

"""The facts of a set for a report: its manifest as it is, and what its recipe states of sources and tokenizer.

The recipe is a JSON object that others may have written. A value of an unexpected type is left out, never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from shards.format.manifest import Manifest, MixEntry, SourceCounts, SourceEntry, Split
from shards.format.reader import ShardSet

MAX_LINE = 300
"""Characters of a list in one line; the items of a longer one are listed one by one."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

_KEYS_SHOWN_APART = ("name", "kind", "weight", "paths", "repo", "config", "split", "revision", "license")
_NOTHING = SourceCounts(tokens=0, documents=0)


@dataclass(frozen=True)
class SourceFacts:
    """One source: what the manifest counts, and what the recipe states.

    Attributes:
        entry: what the build found.
        share: its row of the mix.
        train, val: tokens (EOS included) and documents in each split.
        kind: its kind in the recipe; empty if the recipe states none.
        repository: its repository on the Hub, if it is from there.
        places: paths, or the repository with its configuration and split, as the recipe states them.
        license: as the recipe states it.
        settings: its other keys in the recorded recipe that have a value, as JSON. A resolved recipe does not say which
            of them were set and which are defaults.
    """

    entry: SourceEntry
    share: MixEntry
    train: SourceCounts
    val: SourceCounts
    kind: str
    repository: str | None
    places: list[str]
    license: str | None
    settings: dict[str, str]

    @property
    def name(self) -> str:
        """The name of the source."""
        return self.entry.name


@dataclass(frozen=True)
class SetFacts:
    """A whole set.

    Attributes:
        manifest: its manifest.
        manifest_sha256: the digest of the manifest.
        recipe_text: its recipe.
        bytes: bytes of all its files, the manifest included.
        sources: its sources.
        tokenizer_settings: the keys of the tokenizer in the recorded recipe that have a value, as JSON, with defaults.
    """

    manifest: Manifest
    manifest_sha256: str
    recipe_text: str
    bytes: int
    sources: list[SourceFacts]
    tokenizer_settings: dict[str, str]

    @property
    def tokens(self) -> int:
        """Tokens of both splits."""
        return sum(shard.tokens for shard in self.manifest.shards)

    @property
    def documents(self) -> int:
        """Documents of both splits."""
        return sum(shard.documents for shard in self.manifest.shards)

    @property
    def tokens_bytes(self) -> int:
        """Bytes of the compressed tokens."""
        return sum(shard.files.tokens.bytes for shard in self.manifest.shards)

    @property
    def eos(self) -> str:
        """The text of the token that ends every document."""
        tokenizer = self.manifest.tokenizer
        return next((text for text, token in tokenizer.special_tokens.items() if token == tokenizer.eos_id), "")

    @property
    def rebuildable(self) -> bool:
        """Whether the recipe says of every source where a build reads it."""
        return bool(self.sources) and all(source.places for source in self.sources)


def describe_facts(shard_set: ShardSet) -> SetFacts:
    """Return the facts of a set.

    Raises:
        OSError: a metadata file cannot be read.
    """
    manifest = shard_set.manifest
    recipe_text = shard_set.store.read(manifest.recipe.file).decode("utf-8", "backslashreplace")
    recipe = _read_recipe(recipe_text)
    others = ("manifest.json", manifest.recipe.file, manifest.tokenizer.file)
    # The manifest lists the files of shards; the other three are asked for their sizes.
    sizes = [file.bytes for shard in manifest.shards for file in shard.files.entries]
    tokenizer = _table(recipe.get("tokenizer"))
    shown = {"special_tokens", "eos_token", "vocab_size"}
    if tokenizer.get("file") is not None:
        shown.add("sample_bytes")  # a given tokenizer is not trained
    return SetFacts(
        manifest,
        shard_set.manifest_sha256,
        recipe_text,
        sum(sizes) + sum(shard_set.store.size(name) for name in others),
        _describe_sources(manifest, recipe),
        _list_settings(tokenizer, shown),
    )


def _describe_sources(manifest: Manifest, recipe: dict[str, Any]) -> list[SourceFacts]:
    listed = recipe.get("sources")
    tables = [_table(item) for item in cast("list[Any]", listed)] if isinstance(listed, list) else []
    stated = {name: table for table in tables if (name := _text(table.get("name")))}
    mix = {row.source: row for row in manifest.mix}
    facts: list[SourceFacts] = []
    for entry in manifest.sources:
        own = stated.get(entry.name, {})
        # A manifest that validation would refuse may lack a row of the mix.
        share = MixEntry(source=entry.name, requested=0.0, achieved=0.0, requested_tokens=0, achieved_tokens=0)
        facts.append(
            SourceFacts(
                entry,
                mix.get(entry.name, share),
                _counts(manifest, "train", entry.name),
                _counts(manifest, "val", entry.name),
                kind=_text(own.get("kind")) or "",
                repository=_text(own.get("repo")),
                places=_places(own),
                license=_text(own.get("license")),
                settings=_list_settings(own, _KEYS_SHOWN_APART),
            )
        )
    return facts


def _counts(manifest: Manifest, split: Split, source: str) -> SourceCounts:
    entry = manifest.splits.get(split)
    return entry.sources.get(source, _NOTHING) if entry else _NOTHING


def _read_recipe(text: str) -> dict[str, Any]:
    try:
        return _table(json.loads(text))
    except (ValueError, RecursionError):  # the format requires JSON only because readers of sources need it
        return {}


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


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
        # Deeper tables are shown as JSON.
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

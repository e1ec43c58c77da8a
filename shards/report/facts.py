"""The facts of a set for a report: what its recipe states of sources, beside what its manifest counts.

The recipe is a JSON object that others may have written. A value of an unexpected type is left out, never guessed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from shards.format.manifest import Manifest, MixEntry, SourceCounts, SourceEntry


@dataclass(frozen=True)
class SourceFacts:
    """One source: what the manifest counts, and what the recipe states.

    Attributes:
        name: its name.
        entry: what the build found.
        share: its row of the mix.
        train, val: tokens (EOS included) and documents in each split.
        kind: its kind in the recipe; empty if the recipe states none.
        repository: its repository on the Hub, if it is from there.
        places: paths, or the repository with its configuration and split, as the recipe states them.
        license: as the recipe states it.
    """

    name: str
    entry: SourceEntry
    share: MixEntry
    train: SourceCounts
    val: SourceCounts
    kind: str
    repository: str | None
    places: list[str]
    license: str | None


def describe_sources(manifest: Manifest, recipe_text: str) -> list[SourceFacts]:
    """Return the facts of the sources."""
    try:
        recipe = _table(json.loads(recipe_text))
    except (ValueError, RecursionError):  # the format requires JSON only because readers of sources need it
        recipe = {}
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
                entry.name,
                entry,
                mix.get(entry.name, share),
                manifest.count("train", entry.name),
                manifest.count("val", entry.name),
                kind=_text(own.get("kind")) or "",
                repository=_text(own.get("repo")),
                places=_places(own),
                license=_text(own.get("license")),
            )
        )
    return facts


def _table(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _places(source: dict[str, Any]) -> list[str]:
    paths = source.get("paths")
    places = [path for path in cast("list[Any]", paths) if isinstance(path, str)] if isinstance(paths, list) else []
    if repo := _text(source.get("repo")):
        parts = [part for key in ("config", "split") if (part := _text(source.get(key)))]
        places.append(f"{repo} ({', '.join(parts)})" if parts else repo)
    return places


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None

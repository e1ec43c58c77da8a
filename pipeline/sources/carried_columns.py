"""The carried columns of a set: those of all its sources, which must agree."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.recipe.schema import Recipe
from pipeline.sources.base import Columns, SourceError
from shards.format.carried import CarriedType
from shards.format.manifest import CarriedEntry


def merge_carried(recipe: Recipe, columns: Sequence[Columns]) -> list[CarriedEntry]:
    """Return the carried columns of the set: those of each source, in the order of the sources and of their `carry`.

    Args:
        recipe: the recipe.
        columns: the columns that each source carries, with their types.

    Raises:
        SourceError: two sources give a column different types, or names that differ in case alone.
    """
    if faults := find_carried_faults(recipe, columns):
        raise SourceError("\n".join(faults))
    found: dict[str, CarriedEntry] = {}
    for source, own in zip(recipe.sources, columns, strict=True):
        for name, kind in own:
            others = found[name].sources if name in found else []
            found[name] = CarriedEntry(name=name, type=kind, sources=[*others, source.name])
    return list(found.values())


def find_carried_faults(recipe: Recipe, columns: Sequence[Columns]) -> list[str]:
    """Find the carried columns on which sources differ: in the type, or in the case of the name alone."""
    first: dict[str, tuple[str, CarriedType, str]] = {}
    faults: list[str] = []
    for source, own in zip(recipe.sources, columns, strict=True):
        for name, kind in own:
            # A column belongs to the source that names it first: the others must agree with that one.
            other, expected, where = first.setdefault(name.casefold(), (name, kind, source.name))
            if other != name:
                faults.append(
                    f"source {source.name!r}: carries {name!r}, and {where!r} carries {other!r}, which differs in case "
                    "alone. Leave one out, or rename it in the files."
                )
            elif kind != expected:
                faults.append(
                    f"source {source.name!r}: column {name!r} of `carry` is {kind}, and {expected} in {where!r}; a "
                    "column of the set has one type. State it in `carry` of both, or leave it out of one."
                )
    return faults

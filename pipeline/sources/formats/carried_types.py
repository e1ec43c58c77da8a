"""Columns that a source carries into the document tables: their types in its files, and the one type of each."""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.sources.base import UNKNOWN_TYPE, SourceError
from pipeline.sources.formats.columns import CONVERTIBLE, describe_refused

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe
    from shards.format.carried import CarriedType


def types_in_records(records: Iterable[Any], source: SourceRecipe, where: str) -> tuple[str, ...]:
    """Return the type of each column that a source carries in some JSON records: numbers are integers if all are.

    Raises:
        SourceError: with one line for each column that is absent from all, nested, or of two types.
    """
    rows = list(records)
    faults: list[str] = []
    found: list[str] = []
    for name in source.carried_columns:
        # A record without the column is fine, unless all are.
        held = [value for row in rows for value in values_at(row, name)]
        kinds = dict.fromkeys(_kind_of_json(value) for value in held if value is not None)
        # JSON writes 2.0 as 2: whole numbers among others are numbers with a point.
        if kinds.keys() == {"int64", "float64"}:
            kinds = {"float64": None}
        if not held:
            faults.append(f"no column {name!r} for `carry` in its first records. Correct `carry`.")
        elif refused := [kind for kind in kinds if kind in ("object", "array", "integer beyond 64 bits")]:
            faults.append(describe_refused(name, refused[0]))
        elif len(kinds) > 1:
            faults.append(
                f"column {name!r} of `carry` holds {' and '.join(map(str, kinds))} in its first records; expected "
                "one type. Repair the records, or leave the column out."
            )
        else:
            found.append(next(iter(kinds), UNKNOWN_TYPE))
    if faults:
        raise SourceError("\n".join(f"{where}: {fault}" for fault in faults))
    return tuple(found)


def _kind_of_json(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 63:
        return "integer beyond 64 bits"
    names = {str: "string", bool: "bool", int: "int64", float: "float64", list: "array"}
    return names.get(type(value), "object")


def values_at(record: Any, column: str) -> Iterator[Any]:
    """Yield the value at the dotted path of a column in a JSON record, if it has one."""
    value = record
    for part in column.split("."):
        if not isinstance(value, dict) or part not in value:
            return
        value = value[part]
    yield value


def merge_types(
    source: SourceRecipe, files: Mapping[tuple[str, ...], str], known: dict[str, tuple[CarriedType, str]]
) -> None:
    """Add the types that a source's columns have in some files to those known, each with a file that has it.

    Args:
        source: the source.
        files: for each set of types, as `Span.carried` has them, a file that has them.
        known: the type of each column, and the file that decided it; those that `carry` states need none.

    Raises:
        SourceError: with one line for each column that is of two types, or of none.
    """
    faults: list[str] = []
    for index, (name, stated) in enumerate(source.carried_columns.items()):
        # A stated type counts for all files; else the first file with a value decides.
        if stated is not None:
            known[name] = (stated, "`carry`")
        for kinds, file in files.items():
            kind: Any = kinds[index]
            if kind == UNKNOWN_TYPE:
                continue
            expected, first = known.setdefault(name, (kind, file))
            if kind == expected or (stated is not None and (kind, expected) in CONVERTIBLE):
                continue
            # Two types: name the one that can hold both, if there is one.
            remedy = "Correct `carry`, or convert the files."
            if stated is None:
                both = {kind, expected}
                wider = "string" if "string" in both else "float64"
                possible = all(own == wider or (own, wider) in CONVERTIBLE for own in both)
                state = f'State the type, `"{name}: {wider}"`, or' if possible else "Leave it out of `carry`, or"
                remedy = f"{state} convert the files."
            faults.append(f"{file}: column {name!r} of `carry` is {kind}; expected {expected} as in {first}. {remedy}")
        # All values may be null at the head of every file.
        if name not in known:
            faults.append(
                f"{next(iter(files.values()))}: the type of the column {name!r} of `carry` is not known before it "
                f'is read, or all its first values are null. State it: `"{name}: string"`.'
            )
    if faults:
        raise SourceError("\n".join(f"source {source.name!r}: {fault}" for fault in faults))

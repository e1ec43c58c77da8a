"""Columns by dotted path: finding them in a schema, taking them from a table, and testing predicates on them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import split_by_size, unwrap_mask, wrap_numbers
from pipeline.recipe.predicates import Predicate
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import BATCH_BYTES, SourceError
from pipeline.sources.messages import check_messages, is_list
from shards.errors import InputError, plural
from shards.format.arrays import find_bounds
from shards.terminal.display import printable

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_Table = TypeVar("_Table", pa.Table, pa.RecordBatch)
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
RAW_TYPES = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
"""The types of text, and those of the same bytes without the promise that they are UTF-8."""
_TEXT_TYPES = {*RAW_TYPES, *RAW_TYPES.values()}
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Types in which several values may be one text in memory, and what they are cast to: few functions take them."""


def _list_paths(fields: Iterable[pa.Field[Any]], prefix: str = "") -> Iterator[str]:
    """Yield the columns of a schema, fields of structs as dotted paths."""
    for field in fields:
        yield f"{prefix}{field.name}"
        if pa.types.is_struct(field.type):
            yield from _list_paths(field.type, f"{prefix}{field.name}.")


def top_names(names: list[str], paths: Iterable[str]) -> set[str]:
    """Return the columns among some names that dotted paths lead to or into."""
    return {path if path in names else path.partition(".")[0] for path in paths}


def list_names(names: Iterable[str]) -> str:
    """Return the names of columns for a message: the first twenty, none longer than an excerpt; `none` of no column."""
    shown = [printable(name[:60] + "..." * (len(name) > 60)) for name in names]
    return ", ".join(shown[:20] or ["none"]) + (f" and {len(shown) - 20:,} more" if len(shown) > 20 else "")


def find_type(schema: pa.Schema, path: str) -> pa.DataType | None:
    """Return the type of the values at a dotted path; None if there is no such column.

    A column with dots in its name wins. Of a dictionary, it is the type of the values.
    """
    return _follow(schema, [path] if path in schema.names else path.split("."))


def _follow(schema: pa.Schema, names: list[str]) -> pa.DataType | None:
    found: Any = pa.struct(list(schema))
    for name in names:
        if not pa.types.is_struct(found) or found.get_field_index(name) < 0:
            return None
        found = found.field(name).type
    return found.value_type if pa.types.is_dictionary(found) else found


def _find_column(table: pa.Table | pa.RecordBatch, path: str) -> Any:
    if path in table.schema.names:
        return table.column(path)
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    head, *rest = path.split(".")
    return pc.struct_field(table.column(head), rest)


def take_path(table: pa.Table | pa.RecordBatch, path: str) -> pa.Array[Any]:
    """Return the column at a dotted path of a table as one array."""
    column = _find_column(table, path)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = cast("Any", column).dictionary_decode()
    plain = replace_types(column.type, _VIEWS)
    return cast("pa.Array[Any]", column if column.type == plain else column.cast(plain))


def replace_types(kind: Any, others: Mapping[Any, Any]) -> Any:
    """Return a type with others in place of some types, also of what is in its lists and structs."""
    if is_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(replace_types(kind.value_type, others))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(replace_types(field.type, others)) for field in kind])
    return others.get(kind, kind)


def split_rows(table: _Table, columns: list[str]) -> Iterator[_Table]:
    """Yield rows of a table with at most `BATCH_BYTES` of decoded text in some columns, or twice as much if all has."""
    kinds = [_find_column(table, path).type for path in columns]
    # Of a dictionary or of views, several values may be one text in memory.
    are_shared = any(pa.types.is_dictionary(kind) or kind in _VIEWS for kind in kinds)
    if table.nbytes <= 2 * BATCH_BYTES and not are_shared:
        yield table  # the sizes need not be known: 0.1 s for a gigabyte
        return
    for first, last in split_by_size(measure_rows(table, columns), BATCH_BYTES):
        yield table.slice(first, last - first)


def measure_rows(table: pa.Table | pa.RecordBatch, columns: list[str]) -> np.ndarray:
    """Return the bytes of each row's text in some columns once it is decoded, int64 `(num_rows,)`.

    In a dictionary, or by views, many rows may have one long text.
    """
    sizes = np.zeros(table.num_rows, np.int64)
    for path in columns:
        column = _find_column(table, path)
        chunks: list[Any] = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        sizes += np.concatenate([sizes[:0], *map(measure_texts, chunks)])
    return sizes


def measure_texts(column: Any) -> np.ndarray:
    """Return the bytes of each text of an array once it is decoded, of all in a list; 0 for what is no text."""
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    if pa.types.is_dictionary(column.type):
        own = wrap_numbers(pa.int64(), measure_texts(column.dictionary).astype(np.int64))
        return own.take(column.indices).fill_null(0).to_numpy(zero_copy_only=False)
    if is_list(column.type):
        ends = find_bounds(measure_texts(column.values))
        offsets = column.offsets.to_numpy()
        return ends[offsets[1:]] - ends[offsets[:-1]]
    if pa.types.is_struct(column.type):
        return sum(map(measure_texts, column.flatten()), np.zeros(len(column), np.int64))
    if column.type in _VIEWS:
        lengths = np.frombuffer(column.buffers()[1], np.int32)[::4]  # a view's first number
        return lengths[column.offset : column.offset + len(column)].astype(np.int64)
    if column.type not in _TEXT_TYPES:
        return np.zeros(len(column), np.int64)
    return pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)


def refuse_twins(names: list[str], source: SourceRecipe, where: str) -> None:
    """Refuse a file in which a column of the recipe has a twin of the same name.

    Raises:
        SourceError: naming the columns.
    """
    if twins := sorted(name for name in top_names(names, source.columns) if names.count(name) > 1):
        raise SourceError(
            f"{where}: has {twins[0]!r} as the name of {plural(names.count(twins[0]), 'column')}. Rename them."
        )


def check_columns(schema: pa.Schema, source: SourceRecipe, where: str) -> None:
    """Check the columns that a source names against the schema of a file.

    Args:
        schema: the schema.
        source: the source.
        where: the file, for errors.

    Raises:
        SourceError: with one line for each column that is absent, or whose type does not fit.
    """
    refuse_twins(schema.names, source, where)
    faults: list[str] = []
    for column in source.columns:
        if "." in column and column in schema.names and _follow(schema, column.split(".")) is not None:
            faults.append(f"{column!r} is a column, and also a field of another one. Rename the column or the field.")
    for column in source.text_columns:
        kind = find_type(schema, column)
        if kind is None:
            faults.append(describe_absent(schema, column, source.text_key))
        elif isinstance(source.messages, str):
            faults += check_messages(column, kind, _TEXT_TYPES)
        elif kind not in _TEXT_TYPES:
            faults.append(f"column {column!r} is {kind}, not text. Correct `{source.text_key}`.")
    for predicate in source.predicates:
        kind = find_type(schema, predicate.column)
        if kind is None:
            faults.append(describe_absent(schema, predicate.column, "keep"))
        elif isinstance(kind, _LISTS):
            faults.append(describe_list(predicate.column, predicate.column, "keep"))
        elif not predicate.fits(kind):
            faults.append(f"{predicate.describe_misfit(kind)}. Correct `keep`.")
    if faults:
        raise SourceError("\n".join(f"{where}: {fault}" for fault in faults))


def describe_absent(schema: pa.Schema, column: str, key: str) -> str:
    """Return the fault of a column that a key of the source names and a file has not."""
    # A path that leads into a list names many values.
    for head in accumulate(column.split("."), "{}.{}".format):
        if isinstance(find_type(schema, head), _LISTS):
            return describe_list(column, head, key)
    use = f" for `{key}`" if key == "keep" else ""
    return f"no column {column!r}{use}; there are {list_names(_list_paths(schema))}. Correct `{key}`."


def describe_list(column: str, head: str, key: str) -> str:
    """Return the fault of a column that is in a list, such as the contents of a chat's messages."""
    found = f"column {column!r} is " + ("a list" if head == column else f"in {head!r}, which is a list")
    chat = (
        f"If it has the messages of a chat, name it: messages = {head!r}. Otherwise write" if key == "text" else "Write"
    )
    return (
        f"{found}; a record has one text, and one value to test. {chat} a column with one value for each record first, "
        f"and name it by `{key}`."
    )


def read_path_columns(path: str) -> dict[str, str | None]:
    """Return the columns, and their values, that a path's folders state, as in `year=2020/lang=en/a.parquet` (Hive)."""
    pairs = (folder.partition("=") for folder in path.split("/")[:-1])
    return {key: None if value == _HIVE_NULL else unquote(value) for key, equals, value in pairs if equals}


def without_path_columns(source: SourceRecipe, path: str) -> SourceRecipe:
    """Return the source for a file whose path states columns: these were tested when files were listed."""
    stated = read_path_columns(path) if source.keep else {}
    keep = {column: condition for column, condition in source.keep.items() if column not in stated}
    return source if len(keep) == len(source.keep) else source.model_copy(update={"keep": keep})


def test_path(source: SourceRecipe, path: str) -> str:
    """Return the reason for which `keep` rejects all rows of a file by the columns of its path; empty if it does not.

    Raises:
        SourceError: a value is of another type than the predicate's.
    """
    stated = read_path_columns(path)
    for predicate in source.predicates:
        if predicate.column not in stated:
            continue
        value = stated[predicate.column]
        try:
            values = pa.array([value], pa.large_string()).cast(predicate.json_type())
        except pa.ArrowInvalid as error:
            misfit = predicate.describe_misfit(pa.string())
            raise SourceError(f"{path}: the folder's {misfit}, as it holds {value!r}. Correct `keep`.") from error
        _, rejected = test_predicates(pa.table({predicate.column: values}), [predicate], path)
        if rejected:
            return next(iter(rejected))
    return ""


def test_predicates(
    table: pa.Table | pa.RecordBatch, predicates: list[Predicate], where: str
) -> tuple[np.ndarray, Counter[str]]:
    """Test predicates on the columns of a table of any format, one after the other.

    Args:
        table: the columns.
        predicates: the predicates.
        where: the file, for errors.

    Returns:
        mask: bool `(num_rows,)`, rows that hold all; and the rows rejected by each reason, each row counted once.

    Raises:
        SourceError: a text cannot be compared with a predicate's time.
    """
    import pyarrow.compute as pc  # late: the build's own process needs it seldom, and it takes 0.06 s

    mask = np.ones(table.num_rows, bool)
    rejected: Counter[str] = Counter()
    for predicate in predicates:
        values = take_path(table, predicate.column)
        # A row counts under the first predicate that rejects it; a null is a reason of its own.
        null = mask & unwrap_mask(pc.is_null(values))
        try:
            held = predicate.mask(values)
        except InputError as error:
            raise SourceError(f"{where}: {error}") from error
        passed = mask & unwrap_mask(held.fill_null(False))
        rejected[f"{predicate.reason}: null"] += int(null.sum())
        rejected[predicate.reason] += int(mask.sum() - passed.sum() - null.sum())
        mask = passed
    return mask, +rejected  # without the reasons that reject no row

"""Predicates on columns: `{ int_score = ">= 3" }` becomes Arrow comparisons, with a counted reason for each drop.

Dates and times are compared as instants, in columns of them and of text; one without a zone is of UTC.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import datetime
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from shards.errors import InputError
from shards.terminal.display import printable

if TYPE_CHECKING:
    import pyarrow as pa

_EXACT = 1 << 53
"""Up to this number, every whole number is a float."""
_KINDS = (bool, str, int | float)
_COMPARISON = re.compile(r"\s*(==|!=|<=|>=|<|>)(?!=)\s*(.+?)\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NO_TIME = -(1 << 63)
"""Stands for a text that is no time, where it is only compared whether one is equal."""
_ARROW = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


@dataclass(frozen=True, slots=True)
class Predicate:
    """`column operator value`, or `column in values`."""

    column: str
    operator: str
    value: Any

    @property
    def reason(self) -> str:
        """How a row that fails a predicate is counted, such as `not int_score >= 3`."""
        return f"not {self.column} {self.operator} {self.value}"

    @property
    def example(self) -> Any:
        """A value of the kind that the predicate's column is compared with."""
        return self._values()[0]

    def json_type(self) -> pa.DataType:
        """Return the Arrow type in which a predicate compares a value of JSON or CSV.

        Raises:
            InputError: it is a number that is not told from its neighbours there.
        """
        import pyarrow as pa

        if isinstance(self.example, bool):
            return pa.bool_()
        if isinstance(self.example, str):
            return pa.large_string()
        if any(abs(value) >= _EXACT for value in self._values()):
            raise InputError(
                f"column {self.column!r}: cannot test {self.operator} {self.value}: numbers in JSON, CSV and names of "
                "folders are compared below 2^53. Convert the files to parquet."
            )
        return pa.float64()

    def fits(self, kind: pa.DataType) -> bool:
        """Return whether a column of a type can be compared with the predicate's value."""
        from pyarrow import types

        if isinstance(self.example, bool):
            tests = (types.is_boolean,)
        elif isinstance(self.example, str):
            if _is_time(kind):
                return bool(self._times())
            tests = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
        else:
            tests = (types.is_integer, types.is_floating, types.is_decimal)
        return any(test(kind) for test in tests)

    def _values(self) -> list[Any]:
        return list(self.value) if self.operator == "in" else [self.value]

    def describe_misfit(self, kind: pa.DataType) -> str:
        """Return the fault of a column of a type that cannot be compared with the predicate's value."""
        return f"column {self.column!r} is {kind}; cannot test {self.operator} {self.value!r}"

    def mask(self, values: pa.Array[Any]) -> pa.BooleanArray:
        """Return for which rows of a column, of a type that fits, the predicate holds; null if the column is null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        comparison = self.operator
        wanted: list[Any] = self._values()
        if _is_time(values.type):
            values, wanted = _count_ticks(values, self._times())
        elif times := self._times():
            values, wanted = self._read_texts(values), [*map(_microseconds, times)]
        kind = values.type
        try:
            if pa.types.is_integer(kind):
                # Arrow compares all integers of a type as they are with those of the same type alone.
                compared = pa.array(wanted).cast(kind)
            elif pa.types.is_floating(kind):
                if any(abs(value) >= _EXACT for value in wanted):
                    return self._compare(values.to_pylist(), wanted)
                compared = pa.array([*map(float, wanted)])
            else:
                compared = pa.array(wanted)
            # Membership is false for a null in Arrow; here a null is neither in nor out.
            if comparison == "in":
                found = pc.is_in(values, value_set=compared.cast(kind))
                return pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))
            return pc.call_function(_ARROW[comparison], [values, compared[0]])
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, OverflowError):
            return self._compare(values.to_pylist(), wanted)

    def _compare(self, numbers: Sequence[Any], wanted: list[Any]) -> pa.BooleanArray:
        """Return what `mask` does, slowly: Python compares numbers of any length and kind exactly."""
        import pyarrow as pa

        compare = _COMPARE.get(self.operator, lambda number, _: number in wanted)

        def test(number: Any) -> bool | None:
            if isinstance(number, float) and math.isnan(number):
                return self.operator == "!="
            return None if number is None else compare(number, wanted[0])

        return pa.array(map(test, numbers), pa.bool_())

    def _times(self) -> list[datetime.datetime]:
        """Return the predicate's values if all are dates or times; else nothing."""
        times = [_read_time(text) for text in self._values() if isinstance(text, str) and _ISO_DATE.match(text)]
        return [time for time in times if time] if len(times) == len(self._values()) and all(times) else []

    def _read_texts(self, texts: pa.Array[Any]) -> pa.Array[Any]:
        """Return dates and times in a column of text as microseconds since 1970; an empty text is null.

        Raises:
            InputError: a text is neither, so that it is not before or after the predicate's.
        """
        import pyarrow as pa

        for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):  # all without a zone, or all with one
            try:
                return texts.cast(kind).view(pa.int64())
            except pa.ArrowInvalid:
                continue
        found: list[int | None] = []
        for text in texts.to_pylist():
            time = _read_time(text := (text or "").strip())
            if text and not time and self.operator not in ("==", "!=", "in"):
                raise InputError(
                    f"column {self.column!r} holds {printable(text[:60])!r}; cannot test {self.operator} {self.value}. "
                    "Write times as in 2020-01-31T12:00:00+01:00, or leave them empty: then the rows are dropped."
                )
            found.append(_microseconds(time) if time else _NO_TIME if text else None)
        return pa.array(found, pa.int64())


def parse_predicate(column: str, condition: Any) -> Predicate:
    """Parse one condition of `keep`: `">= 3"`, `"== 'en'"`, or a list of allowed values.

    Raises:
        ValueError: the condition is not of that form.
    """
    if isinstance(condition, list) and condition:
        # `True` is an integer, too.
        kinds = [next((kind for kind in _KINDS if isinstance(value, kind)), None) for value in condition]
        if None in kinds or kinds != kinds[:1] * len(kinds):
            raise ValueError(f"{column}: expected a list of texts, of numbers, or of booleans, got {condition!r}")
        return Predicate(column, "in", tuple(condition))
    match = _COMPARISON.fullmatch(condition) if isinstance(condition, str) else None
    if not match:
        raise ValueError(f'{column}: expected a condition such as ">= 3" or "== \'en\'", or a list of allowed values')
    return Predicate(column, match[1], _literal(match[2]))


def _literal(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    # A word that is no number is a text, also without quotes.
    for parse in (int, float):
        try:
            number = parse(text)
            # Columns of decimals have it as it is written.
            return Decimal(text) if isinstance(number, float) and math.isfinite(number) else number
        except (ValueError, ArithmeticError):  # or an exponent that no Decimal has
            continue
    return text


def checked_predicates(keep: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the predicates of `keep`, or refuse one that cannot be parsed."""
    for column, condition in keep.items():
        parse_predicate(column, condition)
    return keep


def _is_time(kind: pa.DataType) -> bool:
    from pyarrow import types

    return types.is_date(kind) or types.is_timestamp(kind)


def _read_time(text: str) -> datetime.datetime | None:
    """Return a date or time such as `2024-01-31T12:00:00`, of UTC if it says no zone; None if it is none."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)


def _microseconds(time: datetime.datetime) -> int:
    return (time - _EPOCH) // datetime.timedelta(microseconds=1)


def _count_ticks(values: Any, times: list[datetime.datetime]) -> tuple[Any, list[Any]]:
    """Return a column of dates or times as whole numbers of its unit, and times as exact numbers of them."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_date32(kind):
        values, ticks = values.view(pa.int32()), Fraction(1, 86_400)
    else:
        values, ticks = values.view(pa.int64()), Fraction(_TICKS["ms" if pa.types.is_date64(kind) else kind.unit])
    exact = [ticks * _microseconds(time) / 10**6 for time in times]
    return values, [int(number) if number.denominator == 1 else number for number in exact]

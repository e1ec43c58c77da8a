"""Predicates on columns: `{ int_score = ">= 3" }` becomes Arrow comparisons, with a counted reason for each drop."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_COMPARISON = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*")
_ARROW = {"==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}


@dataclass(frozen=True, slots=True)
class Predicate:
    """`column operator value`, or `column in values`."""

    column: str
    operator: str
    value: Any

    @property
    def reason(self) -> str:
        """How a row that fails is counted, such as `not int_score >= 3`."""
        return f"not {self.column} {self.operator} {self.value}"

    def mask(self, values: pa.Array) -> pa.BooleanArray:
        """Return which rows hold; null where the column is null.

        Raises:
            TypeError: the column cannot be compared with the value.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            if self.operator == "in":
                found = pc.is_in(values, value_set=pa.array(self.value).cast(values.type))
                return pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))
            return pc.call_function(_ARROW[self.operator], [values, pa.scalar(self.value)])
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise TypeError(
                f"column {self.column!r} is {values.type}; cannot test {self.operator} {self.value!r}"
            ) from error


def parse_predicate(column: str, condition: Any) -> Predicate:
    """Parse one condition: `">= 3"`, `"== 'en'"`, or a list of allowed values.

    Raises:
        ValueError: the condition is not of that form.
    """
    if isinstance(condition, list) and condition:
        return Predicate(column, "in", tuple(condition))
    match = _COMPARISON.fullmatch(condition) if isinstance(condition, str) else None
    if not match:
        raise ValueError(f'{column}: expected a condition such as ">= 3" or "== \'en\'", or a list of allowed values')
    return Predicate(column, match[1], _literal(match[2]))


def parse_keep(keep: dict[str, Any]) -> list[Predicate]:
    """Parse a source's `keep` table, in its order."""
    return [parse_predicate(column, condition) for column, condition in keep.items()]


def _literal(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    for parse in (int, float):
        try:
            return parse(text)
        except ValueError:
            continue
    return text

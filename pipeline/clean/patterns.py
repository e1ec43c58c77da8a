"""Documents that a recipe's `drop_if_matches` drops: found on Arrow columns, counted by pattern, shown when too many.

RE2 matches the patterns in time linear in the text, for any pattern. One pass searches for all patterns, at 450 to
3,600 MB of text per second and core (`\\bPersonX\\b` 450). Only documents that match are tested for each pattern.
"""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import unwrap_mask, wrap_texts
from pipeline.recipe.key_values import MATCH_GROUP, in_group

if TYPE_CHECKING:
    import numpy.typing as npt

    from pipeline.recipe.schema import SourceRecipe

SHOWN_MATCHES = 3
"""Number of documents kept per pattern and unit, and shown per pattern when the build stops."""
EXCERPT_BYTES = 60
"""Text kept on each side of a match."""


@dataclass(frozen=True, slots=True)
class Match:
    """A document that was dropped: its row, the pattern, and the first match with the text around it."""

    row: int
    pattern: str
    before: str
    hit: str
    after: str
    span: str = ""
    """Label of the row's span."""


def find_pattern_matches(
    text: pa.LargeStringArray,
    rows: npt.NDArray[np.uint32],
    patterns: Sequence[str],
    dropped: Counter[str],
    matches: list[Match] | None = None,
) -> npt.NDArray[np.bool_]:
    """Find the documents that a pattern matches.

    Args:
        text: the documents, `(documents,)`, without nulls.
        rows: their rows.
        patterns: in their order: a document that several match is counted for the first.
        dropped: the counts by reason are added to it.
        matches: `SHOWN_MATCHES` of each pattern are kept there.

    Returns:
        Which documents match, `(documents,)`.
    """
    import pyarrow.compute as pc

    found = np.zeros(len(text), bool)
    for pattern in _passes(tuple(patterns)):
        found |= unwrap_mask(pc.match_substring_regex(text, pattern))
    left = np.flatnonzero(found)
    for pattern in patterns:
        if not len(left):
            break
        held = text.take(pa.Array.from_buffers(pa.int64(), len(left), [None, pa.py_buffer(left.data)]))
        own = unwrap_mask(pc.match_substring_regex(held, pattern))
        if own.any():
            dropped[pattern_reason(pattern)] += int(own.sum())
            if matches is not None:
                room = SHOWN_MATCHES - sum(match.pattern == pattern for match in matches)
                matches += [_describe(text, index, int(rows[index]), pattern) for index in left[own][:room].tolist()]
        left = left[~own]
    return found


def count_pattern_matches(source: SourceRecipe, dropped: Mapping[str, int]) -> int:
    """Return how many documents the source's patterns dropped."""
    return sum(dropped.get(pattern_reason(pattern), 0) for pattern in source.drop_if_matches)


def pattern_matches_to_json(matches: Iterable[Match], span: str) -> list[dict[str, Any]]:
    """Return matches of one span as JSON values."""
    return [asdict(match) | {"span": span} for match in matches]


@lru_cache(maxsize=16)
def _passes(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the patterns joined into one, or unchanged if RE2 refuses that: names used twice, or too large."""
    import pyarrow.compute as pc

    if len(patterns) == 1:
        return patterns
    together = "|".join(f"(?:{pattern})" for pattern in patterns)
    try:
        pc.match_substring_regex(wrap_texts(pa.large_string(), [b""]), together)
    except pa.ArrowInvalid:
        return patterns
    return (together,)


def _describe(text: pa.LargeStringArray, index: int, row: int, pattern: str) -> Match:
    import pyarrow.compute as pc

    from shards.trace.excerpt import cut_excerpt

    place: Any = pc.extract_regex_span(text.slice(index, 1), in_group(pattern))[0].as_py()  # pyright: ignore
    start, length = place[MATCH_GROUP]
    excerpt = cut_excerpt(text[index].as_buffer().to_pybytes(), start, start + length, around=EXCERPT_BYTES)
    return Match(row, pattern, excerpt.before, excerpt.hit, excerpt.after)


def pattern_reason(pattern: str) -> str:
    """Return the reason under which the documents that a pattern drops are counted."""
    return f"matches {pattern}"

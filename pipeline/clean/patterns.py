"""Documents that a recipe's `drop_if_matches` drops: found on Arrow columns, counted by pattern, shown when too many.

RE2 matches the patterns in time linear in the text, for any pattern. One pass searches for all patterns, at 450 to
3,600 MB of text per second and core (`\\bPersonX\\b` 450). Only documents that match are tested for each pattern.
"""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import unwrap_mask, wrap_numbers, wrap_texts
from pipeline.clean.reasons import PATTERN, SHOWN_DOCUMENTS
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.key_values import MATCH_GROUP, in_group
from pipeline.recipe.schema import SourceRecipe

EXCERPT_BYTES = 60
"""Text kept on each side of a match."""


def drop_matches(source: SourceRecipe, documents: Documents, tally: Tally) -> Documents:
    """Drop the documents that a pattern matches, each counted for the first one that does."""
    if not source.drop_if_matches:
        return documents
    import pyarrow.compute as pc

    text = documents.seen.text
    found = np.zeros(len(text), bool)
    for pattern in _passes(tuple(source.drop_if_matches)):
        found |= unwrap_mask(pc.match_substring_regex(text, pattern))
    # Only documents that some pattern matches are tested for each one.
    left = np.flatnonzero(found)
    for pattern in source.drop_if_matches:
        reason = f"{PATTERN}{pattern}"
        tally.drops.step(reason).decided.documents += len(text)
        if not len(left):
            continue
        held = text.take(wrap_numbers(pa.int64(), left))
        own = unwrap_mask(pc.match_substring_regex(held, pattern))
        # Of each pattern the first matches are shown, with the text around them.
        for index in left[own][: tally.room(reason, SHOWN_DOCUMENTS)].tolist():
            tally.show(int(documents.rows[index]), reason, _describe(text, index, pattern))
        tally.drops.count_rows({reason: int(own.sum())})
        left = left[~own]
    return documents.only(~found)


@lru_cache(maxsize=16)
def _passes(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the patterns of `drop_if_matches` joined into one, or unchanged if RE2 refuses that."""
    import pyarrow.compute as pc

    if len(patterns) == 1:
        return patterns
    together = "|".join(f"(?:{pattern})" for pattern in patterns)
    try:
        pc.match_substring_regex(wrap_texts(pa.large_string(), [b""]), together)
    except pa.ArrowInvalid:
        return patterns
    return (together,)


def _describe(text: pa.LargeStringArray, index: int, pattern: str) -> str:
    """Return the first match of a pattern in a document, with the text around it."""
    import pyarrow.compute as pc

    from shards.trace.locate import cut_excerpt

    place: Any = pc.extract_regex_span(text.slice(index, 1), in_group(pattern))[0].as_py()  # pyright: ignore
    start, length = place[MATCH_GROUP]
    excerpt = cut_excerpt(text[index].as_buffer().to_pybytes(), start, start + length, around=EXCERPT_BYTES)
    return f"{excerpt.before}>>>{excerpt.hit}<<<{excerpt.after}"

"""String literals of program text, by rules that need no grammar: quotes are counted, not parsed.

- A run of three or more equal quotes is as many triple quotes as it has threes; an odd number of them begins or ends a
  string that goes on over lines, to the end of the document if nothing ends it.
- Any other quote outside such a string, ' or ", without a backslash before it, begins a string that the next one on the
  line ends. The last of an odd number on a line, such as the apostrophe of a comment, begins none.

An apostrophe inside double quotes ends the string early. That moves a share by little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.batch import Batch

if TYPE_CHECKING:
    import numpy.typing as npt

_SINGLE, _DOUBLE, _BACKSLASH = 0x27, 0x22, 0x5C


def find_literals(batch: Batch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find the text of string literals, without the quotes.

    Returns:
        The first position of each literal that has any text, and the one behind its last, ascending; none overlap.
    """
    quotes = np.flatnonzero((batch.data == _SINGLE) | (batch.data == _DOUBLE))
    chars = batch.data[quotes]
    offsets = np.searchsorted(quotes, batch.offsets)
    documents = np.repeat(np.arange(len(batch)), np.diff(offsets))
    # Runs of equal quotes.
    begins = np.ones(len(quotes) + 1, bool)
    begins[1:-1] = (np.diff(quotes) > 1) | (chars[1:] != chars[:-1])
    begins[offsets] = True
    runs = np.flatnonzero(begins[:-1])
    lengths = np.diff(runs, append=len(quotes))
    is_triple = lengths // 3 % 2 == 1
    triple = runs[is_triple]
    long_starts, long_stops = _pair(
        quotes[triple] + lengths[is_triple], quotes[triple], documents[triple], batch.offsets[1:]
    )
    # Quotes of runs of one or two, outside the long strings.
    alone = np.repeat(lengths < 3, lengths)
    escaped = batch.data[quotes - 1] == _BACKSLASH
    firsts = offsets[:-1][np.diff(offsets) > 0]
    escaped[firsts] &= ~np.isin(quotes[firsts], batch.offsets)  # the first byte of a document has none before it
    alone &= ~escaped
    alone, documents = quotes[alone], documents[alone]
    if len(long_starts):
        inside = np.searchsorted(long_starts, alone, "right") - 1
        outside = (inside < 0) | (alone >= long_stops[inside])
        alone, documents = alone[outside], documents[outside]
    starts, stops = _pair(alone + 1, alone, batch.newline_ranks.before(alone) + documents, None)
    if len(long_starts):
        starts, stops = np.concatenate([long_starts, starts]), np.concatenate([long_stops, stops])
        order = np.argsort(starts, kind="stable")
        starts, stops = starts[order], stops[order]
        # A pair on one line can have a long string between its quotes.
        starts[1:] = np.maximum(starts[1:], np.maximum.accumulate(stops)[:-1])
    some = stops > starts
    return starts[some], stops[some]


def _pair(
    behind: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64],
    groups: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64] | None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pair marks with the next one of their group: the first with the second, the third with the fourth.

    Args:
        behind: position behind each mark, `(marks,)`, ascending.
        before: position of each mark.
        groups: the group of each, ascending.
        ends: where each group ends, for a last mark without a partner; None to leave it out.
    """
    if not len(groups):
        return behind, before
    paired = np.append(groups[1:] == groups[:-1], False)
    places = np.arange(len(groups))
    first_of_group = np.where(np.append(True, ~paired[:-1]), places, 0)
    opening = (places - np.maximum.accumulate(first_of_group)) & 1 == 0
    stops = np.append(before[1:], 0)
    if ends is not None:
        stops = np.where(paired, stops, ends[groups])
        paired[:] = True
    return behind[opening & paired], stops[opening & paired]

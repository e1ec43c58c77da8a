"""Sentences in the lines that C4 would keep. C4 drops the other lines; here they only do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.batch import Batch, CharSet, Measure, count_parts
from pipeline.clean.measures.lines import Lines
from pipeline.clean.measures.phrases import Phrases
from pipeline.clean.measures.words import Words

if TYPE_CHECKING:
    import numpy.typing as npt

MIN_LINE_WORDS = 5
"""Words that a line of C4 has at least (Raffel et al. 2020, section 2.2)."""
MAX_WORD_CHARS = 1000
"""Characters of a word of C4's lines at most (TensorFlow Datasets, `c4_utils.py`)."""
SENTENCE_ENDS = ".!?…。！？।؟۔"
"""Marks at which a sentence ends."""
CLOSERS = "\"')]”’»"
"""Quotes and brackets that may follow a sentence's mark, at most `MAX_CLOSERS`."""
MAX_CLOSERS = 2


def _sentences(batch: Batch) -> npt.NDArray[np.int64]:
    """Count the words behind which a sentence ends, the last of each line always among them."""
    words, lines, phrases = batch.table(Words), batch.table(Lines), batch.table(Phrases)
    kept = lines.punctuated & ~lines.trailing_off & (lines.lasts - lines.firsts >= MIN_LINE_WORDS)
    kept &= ~phrases.javascript_lines & ~phrases.policy_lines
    long = np.flatnonzero(words.lengths > MAX_WORD_CHARS)
    long = long[batch.chars_between(words.starts[long], words.stops[long]) > MAX_WORD_CHARS]
    kept[lines.ranks.before(long + 1) - 1] = False
    ending = words.ranks.before(_find_ends(batch, words)) - 1
    line = lines.ranks.before(ending + 1) - 1
    ending = ending[kept[line] & (ending != lines.lasts[line] - 1)]
    return count_parts(kept, lines.offsets) + np.diff(np.searchsorted(ending, words.offsets))


def _find_ends(batch: Batch, words: Words) -> npt.NDArray[np.int64]:
    """Return where words end behind which a sentence ends, ascending."""
    # The last byte of a word: of all words, few end with any of these.
    data = batch.data
    ends = (data == ord(".")) | (data == ord("!")) | (data == ord("?"))
    closed = (data == ord('"')) | (data == ord("'")) | (data == ord(")")) | (data == ord("]")) | (data >= 0x80)
    lasts = ~batch.white
    lasts[:-1] &= batch.white[1:]
    lasts[batch.offsets[1:] - 1] = ~batch.white[batch.offsets[1:] - 1]
    stops = np.flatnonzero(closed & lasts) + 1
    starts = words.starts[words.ranks.before(stops) - 1]
    found = np.flatnonzero(ends & lasts) + 1
    return np.sort(np.concatenate([found, stops[_end_sentences(batch, starts, stops)]]), kind="stable")


def _end_sentences(batch: Batch, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return behind which of some words a sentence ends, `(words,)`."""
    found = np.zeros(len(stops), bool)
    at = np.arange(len(stops))
    for _ in range(MAX_CLOSERS + 1):
        if not len(at):
            break
        found[at[batch.end_with(_ENDS, stops) > 0]] = True
        before = stops - batch.end_with(_CLOSERS, stops)
        on = (before < stops) & (before > starts[at])
        at, stops = at[on], before[on]
    return found


_ENDS, _CLOSERS = CharSet(SENTENCE_ENDS), CharSet(CLOSERS)


MEASURES = {
    "sentences": Measure(
        f"sentences in the lines that C4 would keep: {MIN_LINE_WORDS} words and more, a mark at the end, no JavaScript "
        "and no policy",
        _sentences,
    )
}

"""Sentences in the lines that C4 would keep. C4 drops the other lines; here they only do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.batch import Batch, Measure, sum_parts
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
    long = np.flatnonzero(words.num_chars > MAX_WORD_CHARS)
    kept[np.searchsorted(lines.firsts, long, "right") - 1] = False
    in_kept = np.flatnonzero(np.repeat(kept, lines.lasts - lines.firsts))
    ending = np.zeros(len(words.starts), bool)
    ending[in_kept] = _find_ends(batch, words.starts[in_kept], words.stops[in_kept])
    ending[lines.lasts[kept] - 1] = True
    return sum_parts(ending, words.offsets)


def _find_ends(batch: Batch, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return behind which of some words a sentence ends, `(words,)`."""
    kinds = _KINDS[batch.data[stops - 1]]
    found = kinds == _END
    at = np.flatnonzero(kinds > _END)  # few words end with a quote, a bracket or a character outside ASCII
    stops = stops[at]
    for _ in range(MAX_CLOSERS + 1):
        if not len(at):
            break
        ended, closed = _KINDS[batch.data[stops - 1]] == _END, np.zeros(len(at), np.int64)
        for mark in SENTENCE_ENDS:
            if not mark.isascii():
                ended |= batch.matches(stops - len(mark.encode()), mark.encode())
        for closer in map(str.encode, CLOSERS):
            closed[batch.matches(stops - len(closer), closer)] = len(closer)
        found[at[ended]] = True
        on = (closed > 0) & (stops - closed > starts[at])
        at, stops = at[on], (stops - closed)[on]
    return found


_OTHER, _END, _CLOSER, _BEYOND_ASCII = range(4)
_KINDS = np.full(256, _OTHER, np.uint8)
_KINDS[0x80:] = _BEYOND_ASCII
_KINDS[[ord(mark) for mark in SENTENCE_ENDS if mark.isascii()]] = _END
_KINDS[[ord(closer) for closer in CLOSERS if closer.isascii()]] = _CLOSER


MEASURES = {
    "sentences": Measure(
        f"sentences in the lines that C4 would keep: {MIN_LINE_WORDS} words and more, a mark at the end, no JavaScript "
        "and no policy",
        _sentences,
    )
}

"""Sentences in the lines that C4 would keep. C4 drops the other lines; here they only do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.characters import has_code, mark_bytes, read_last
from pipeline.clean.measures.lines import is_punctuated, trails_off
from pipeline.clean.measures.names import CLOSERS, MAX_CLOSERS, MAX_WORD_CHARS, MIN_LINE_WORDS, SENTENCE_ENDS
from pipeline.numba_compiler import compiled

if TYPE_CHECKING:
    from pipeline.clean.measures.characters import Bytes
    from pipeline.clean.measures.lines import Lines
    from pipeline.clean.measures.phrases import Flags
    from pipeline.clean.measures.words import Words

_ENDS = np.array([ord(char) for char in SENTENCE_ENDS])
_CLOSERS = np.array([ord(char) for char in CLOSERS])
_LAST_BYTES = mark_bytes((SENTENCE_ENDS + CLOSERS).encode())
"""The bytes of both, among them the last bytes of words that can end a sentence: few words have one."""


@compiled
def measure_sentences(document: Bytes, words: Words, lines: Lines, flags: Flags) -> float:
    """Count the words that end a sentence; the last word of a line always does."""
    count = 0
    for line in range(len(flags)):
        first, last = lines.firsts[line], lines.firsts[line + 1] - 1
        if flags[line] == 0 and _keeps_line(document, words, first, last):
            count += 1
            for word in range(first, last):
                stop = words.stops[word]
                if _LAST_BYTES[document[stop - 1]]:
                    count += _ends_sentence(document, words.starts[word], stop)
    return float(count)


@compiled
def _keeps_line(document: Bytes, words: Words, first: int, last: int) -> bool:
    """Return whether C4 keeps a line, by its first and last words; its phrases are not checked."""
    if last - first + 1 < MIN_LINE_WORDS or not is_punctuated(document, words.stops[last]):
        return False
    if trails_off(document, words.starts[first], words.stops[last]):
        return False
    for word in range(first, last + 1):
        if words.chars_before[word + 1] - words.chars_before[word] > MAX_WORD_CHARS:
            return False
    return True


@compiled
def _ends_sentence(document: Bytes, start: int, stop: int) -> bool:
    """Return whether a word ends with a sentence's mark, followed by at most `MAX_CLOSERS` quotes and brackets."""
    for _ in range(MAX_CLOSERS + 1):
        code, size = read_last(document, stop)
        if has_code(_ENDS, code):
            return True
        stop -= size
        if stop <= start or not has_code(_CLOSERS, code):
            return False
    return False

"""Lines, what line feeds separate, and sentences in them. Code counts all lines, prose those with a word.

Sentences are counted in the lines that C4 would keep. C4 drops the other lines; here they only do not count.
"""

from typing import NamedTuple

import numpy as np

from pipeline.clean.measures.characters import (
    NEWLINE,
    Blocks,
    Bytes,
    begins_with,
    count_byte,
    divide,
    mark_bytes,
    read_last,
    read_stretch,
)
from pipeline.clean.measures.names import (
    CLOSERS,
    MAX_CLOSERS,
    MAX_WORD_CHARS,
    MIN_LINE_WORDS,
    PUNCTUATION,
    SENTENCE_ENDS,
    SHORT_CHARS,
)
from pipeline.clean.measures.words import Words
from pipeline.numba_compiler import compiled
from shards.format.arrays import Int32s, UInt8s

_PUNCTUATION, _ENDS, _CLOSERS = (tuple(map(ord, chars)) for chars in (PUNCTUATION, SENTENCE_ENDS, CLOSERS))
_LAST_BYTES = mark_bytes((SENTENCE_ENDS + CLOSERS).encode())
"""The bytes of both, among them the last bytes of words that can end a sentence: few words have one."""
_BULLET = np.frombuffer("•".encode(), np.uint8)
_DOTS = np.frombuffer(b"...", np.uint8)
_MOST_BYTES = 4
"""Bytes that a character has at most."""


class Lines(NamedTuple):
    """The lines of a document that are not blank, in order."""

    firsts: Int32s
    """The first word of each line, and the number of words, `(lines + 1,)`."""
    paragraphs: Int32s
    """The first line of each paragraph, and the number of lines, `(paragraphs + 1,)`; blank lines are between them."""
    num_lines: int


@compiled
def find_lines(document: Bytes, words: Words) -> Lines:
    """Find the lines of a document that are not blank."""
    firsts = np.empty(len(words.starts) + 1, np.int32)
    paragraphs = np.empty(len(words.starts) + 1, np.int32)
    count = count_paragraphs = stop = 0
    for word in range(len(words.starts)):
        feeds = 0
        for at in range(stop, words.starts[word]):
            feeds += document[at] == NEWLINE
        if feeds > 1 or word == 0:
            paragraphs[count_paragraphs] = count
            count_paragraphs += 1
        if feeds or word == 0:
            firsts[count] = word
            count += 1
        stop = int(words.stops[word])
    firsts[count] = len(words.starts)
    paragraphs[count_paragraphs] = count
    return Lines(firsts[: count + 1].copy(), paragraphs[: count_paragraphs + 1].copy(), count)


@compiled
def measure_lines(document: Bytes, blocks: Blocks, words: Words, lines: Lines) -> tuple[float, ...]:
    """Measure the lines of a document."""
    feeds = count_byte(document, NEWLINE)
    all_lines = feeds + int(document[-1] != NEWLINE)  # a line feed at the end opens no further line
    count = lines.num_lines
    bullets = ellipses = punctuated = short = 0
    for line in range(count):
        first, last = int(lines.firsts[line]), int(lines.firsts[line + 1]) - 1
        start, stop = words.starts[first], words.stops[last]
        bullets += document[start] == ord("-") or begins_with(document, start, stop, _BULLET)
        ellipses += trails_off(document, start, stop)
        punctuated += is_punctuated(document, stop)
        if stop - start < SHORT_CHARS * _MOST_BYTES:
            short += read_stretch(blocks, start, stop)[1] < SHORT_CHARS
    return (
        divide(len(document) - feeds, all_lines),
        float(_find_longest(document)),
        divide(bullets, count),
        divide(ellipses, count),
        divide(punctuated, count),
        divide(short, count),
    )


@compiled
def _find_longest(document: Bytes) -> int:
    """Return the bytes of the longest of all lines, blank ones too."""
    start = longest = 0
    for at in range(len(document)):
        if document[at] == NEWLINE:
            longest = max(longest, at - start)
            start = at + 1
    return max(longest, len(document) - start)


@compiled
def is_punctuated(document: Bytes, stop: int) -> bool:
    """Return whether a line that ends at a position ends with one of `PUNCTUATION`."""
    return read_last(document, stop)[0] in _PUNCTUATION


@compiled
def trails_off(document: Bytes, start: int, stop: int) -> bool:
    """Return whether a line ends with an ellipsis."""
    return begins_with(document, max(start, stop - 3), stop, _DOTS) or read_last(document, stop)[0] == ord("…")


@compiled
def measure_sentences(document: Bytes, words: Words, lines: Lines, flags: UInt8s) -> float:
    """Count the sentences of lines by the words that end one; the last word of a line always does."""
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
    """Return whether a word of a line ends with a sentence's mark, and at most `MAX_CLOSERS` quotes and brackets."""
    for _ in range(MAX_CLOSERS + 1):
        code, size = read_last(document, stop)
        if code in _ENDS:
            return True
        stop -= size
        if stop <= start or code not in _CLOSERS:
            return False
    return False

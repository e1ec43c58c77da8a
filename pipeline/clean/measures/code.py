"""Measures that tell program text from data: letters and digits, encoded runs, letters outside strings.

Letters of program text outside string literals, by rules that need no grammar: quotes are counted, not parsed.

- A run of three or more equal quotes is as many triple quotes as it has threes; an odd number of them begins or ends a
  string that goes on over lines, to the end of the document if nothing ends it.
- Any other quote outside such a string, ' or ", without a backslash before it, begins a string that the next one on the
  line ends. The last of an odd number on a line, such as the apostrophe of a comment, begins none.

An apostrophe inside double quotes ends the string early. That moves a share by little.
"""

import numpy as np

from pipeline.clean.measures.characters import (
    ASCII_LETTERS,
    DIGITS,
    FIRST_WIDE,
    NEWLINE,
    Bytes,
    divide,
    is_letter,
    mark_bytes,
)
from pipeline.clean.measures.names import ENCODED_RUN_BYTES
from pipeline.clean.measures.words import Words
from pipeline.numba_compiler import compiled

_ALPHANUMERIC = ASCII_LETTERS | DIGITS
NAME = _ALPHANUMERIC | mark_bytes(b"_")
"""The bytes of names and numbers: letters from A to Z, digits and underscores."""
_ENCODED = _ALPHANUMERIC | mark_bytes(b"+/=\n")
_QUOTES = mark_bytes(b"'\"")
_SPECIAL = _QUOTES | DIGITS | mark_bytes(b"\n") | (np.arange(256) >= FIRST_WIDE)
"""The few bytes of most text that need a closer look."""
_BACKSLASH = 0x5C


@compiled
def measure_alphanumeric(document: Bytes) -> float:
    """Measure the share of letters and digits, which tells program code from data."""
    found = chars = 0
    for at in range(len(document)):
        byte = document[at]
        if byte < 0x80 or byte >= FIRST_WIDE:  # a character begins
            chars += 1
            found += bool(DIGITS[byte]) or is_letter(document, at)
    return divide(found, chars)


@compiled
def measure_encoded(document: Bytes) -> tuple[float, float]:
    """Measure data encoded in code: runs of `ENCODED_RUN_BYTES` or more of letters, digits, +, /, = and line feeds."""
    longest = found = start = 0
    for at in range(len(document) + 1):
        if at == len(document) or not _ENCODED[document[at]]:
            if at - start >= ENCODED_RUN_BYTES:
                longest = max(longest, at - start)
                found += at - start
            start = at + 1
    return float(longest), divide(found, len(document))


@compiled
def measure_literals(document: Bytes, words: Words) -> float:
    """Measure the share of letters outside strings, and outside names that begin with a digit: numbers."""
    letters = before_quote = 0
    in_long = quoted = False
    at = 0
    while at < len(document):
        byte = document[at]
        if not _SPECIAL[byte]:
            letters += int(ASCII_LETTERS[byte]) & int(not in_long)
            at += 1
            continue
        size = 1
        if _QUOTES[byte]:
            size = _count_equal_bytes(document, at)
            if size >= 3:
                in_long ^= size // 3 % 2 == 1
            elif not in_long:
                escaped = at > 0 and document[at - 1] == _BACKSLASH
                for _ in range(size - int(escaped)):
                    letters = before_quote if quoted else letters  # those since the quote are in a string
                    before_quote = letters
                    quoted = not quoted
        elif byte == NEWLINE:
            quoted = False
        elif DIGITS[byte]:
            if at == 0 or not NAME[document[at - 1]]:
                size = _count_name_bytes(document, at)  # a number: its letters, such as those of 0xFF, do not count
        elif not in_long:
            letters += is_letter(document, at)
        at += size
    return divide(letters, words.chars_before[-1])


@compiled
def _count_equal_bytes(document: Bytes, at: int) -> int:
    """Return how many bytes of code from a position on are equal to the one there."""
    stop = at + 1
    while stop < len(document) and document[stop] == document[at]:
        stop += 1
    return stop - at


@compiled
def _count_name_bytes(document: Bytes, at: int) -> int:
    """Return how many bytes from a position on belong to names and numbers of code."""
    stop = at
    while stop < len(document) and NAME[document[stop]]:
        stop += 1
    return stop - at

"""Cut text into the pre-tokens of the published split patterns, compiled.

The functions do what a regular expression engine does with `pipeline.tokenizer.train.PATTERNS`: they try one
alternative after another, and give characters back when the engine would. What a character is comes from a table that
`pipeline.tokenizer.word_counts` fills by asking the engine of `tokenizers`, so that both know the same Unicode. Text is
UTF-8, and each document ends with the byte `END_OF_TEXT` or where the bytes end.
"""

# Where Python has `int`, compiled code has `np.int64`.
# pyright: reportArgumentType=false, reportReturnType=false, reportAssignmentType=false
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.numba_compiler import compiled, compiled_and_kept

Bytes = npt.NDArray[np.uint8]
"""Text, or the table of what each character is."""

END_OF_TEXT = 0xFF
LETTER, NUMBER, SPACE, NEWLINE, UPPER, LOWER, END = 1, 2, 4, 8, 16, 32, 64
"""What a character is: `\\p{L}`, `\\p{N}`, `\\s`, `[\\r\\n]`, the two classes of o200k, and the end of the text."""
_NOT_OTHER = LETTER | NUMBER | SPACE | END
"""What `[^\\s\\p{L}\\p{N}]` does not match."""
_NO_PREFIX = LETTER | NUMBER | NEWLINE | END
"""What `[^\\r\\n\\p{L}\\p{N}]` does not match."""
_APOSTROPHE, _SLASH, _BLANK = 0x27, 0x2F, 0x20
_LONG_S = (0xC5, 0xBF)
"""The bytes of U+017F, which equals an s when case is ignored."""

LLAMA3, QWEN2, O200K = range(3)
PATTERN_NUMBERS = {"llama3": LLAMA3, "qwen2": QWEN2, "o200k": O200K}


@compiled_and_kept
def cut(data: Bytes, at: int, stop: int, classes: Bytes, pattern: int, spans: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Scan text and cut it into pre-tokens until it ends or there is no room for more.

    Args:
        data: the text.
        at: where to begin.
        stop: where the last document ends.
        classes: what each code point is.
        pattern: one of `PATTERN_NUMBERS`.
        spans: takes the beginning and the end of each pre-token in its first two columns, `(room, 3)`.

    Returns:
        Where to go on, and how many pre-tokens there are.
    """
    size = 0
    while at < stop and size < len(spans):
        end = _next_pretoken(data, at, stop, classes, pattern)
        if end == at:  # a document ends
            at += 1
            continue
        spans[size, 0], spans[size, 1] = at, end
        size += 1
        at = end
    return at, size


@compiled_and_kept
def see(data: Bytes, at: int, stop: int, seen: npt.NDArray[np.bool_]) -> None:
    """Scan a text, and mark the code points that occur in it."""
    while at < stop:
        code = np.int64(data[at])
        at += 1
        if code >= 0x80 and code != END_OF_TEXT:
            width = 2 if code < 0xE0 else 3 if code < 0xF0 else 4
            code &= 0x7F >> width
            for _ in range(1, width):
                code = code << 6 | data[at] & 0x3F
                at += 1
        seen[code] = True


@compiled
def _next_pretoken(data: Bytes, at: int, stop: int, classes: Bytes, pattern: int) -> int:
    """Return where the pre-token ends that begins at a byte; the byte itself at the end of a document."""
    first, width = _look(data, at, stop, classes)
    if first & END:
        return at
    if pattern == O200K:
        end = _cased_word(data, at, stop, classes, first, width)
    else:
        end = _contraction(data, at, stop)
        if end == at:
            end = _word(data, at, stop, classes, first, width)
    if end > at:
        return end
    # No word begins here: a number, other characters, or white space.
    if first & NUMBER:
        return _digits(data, at, stop, classes, 1 if pattern == QWEN2 else 3)
    end = _other(data, at, stop, classes)
    if end == at:
        return _spaces(data, at, stop, classes)
    while end < stop and (data[end] in (0x0A, 0x0D) or (pattern == O200K and data[end] == _SLASH)):
        end += 1
    return end


@compiled
def _look(data: Bytes, at: int, stop: int, classes: Bytes) -> tuple[int, int]:
    """Return what the character at a byte is, and how many bytes it has."""
    if at >= stop or data[at] == END_OF_TEXT:
        return END, 0
    code = np.int64(data[at])
    if code < 0x80:
        return np.int64(classes[code]), 1
    width = 2 if code < 0xE0 else 3 if code < 0xF0 else 4
    code &= 0x7F >> width
    for k in range(1, width):
        code = code << 6 | data[at + k] & 0x3F
    return np.int64(classes[code]), width


@compiled
def _skip(data: Bytes, at: int, stop: int, classes: Bytes, wanted: int) -> int:
    """Return where a run of characters ends that are of a wanted kind."""
    while True:
        kind, width = _look(data, at, stop, classes)
        if not kind & wanted:
            return at
        at += width


@compiled
def _contraction(data: Bytes, at: int, stop: int) -> int:
    """Match `(?i:'s|'t|'re|'ve|'m|'ll|'d)`; return where it ends, or where it began without a match."""
    if at + 1 >= stop or data[at] != _APOSTROPHE:
        return at
    first = data[at + 1] | 0x20
    if first in (0x73, 0x74, 0x6D, 0x64):  # s, t, m, d
        return at + 2
    if at + 2 >= stop:
        return at
    if data[at + 1] == _LONG_S[0] and data[at + 2] == _LONG_S[1]:
        return at + 3
    second = data[at + 2] | 0x20
    if (second == 0x65 and first in (0x72, 0x76)) or (second == 0x6C and first == 0x6C):  # re, ve, ll
        return at + 3
    return at


@compiled
def _word(data: Bytes, at: int, stop: int, classes: Bytes, first: int, width: int) -> int:
    """Match `[^\\r\\n\\p{L}\\p{N}]?\\p{L}+`."""
    if first & LETTER:
        return _skip(data, at + width, stop, classes, LETTER)
    if not first & _NO_PREFIX:
        end = _skip(data, at + width, stop, classes, LETTER)
        if end > at + width:
            return end
    return at


@compiled
def _cased_word(data: Bytes, at: int, stop: int, classes: Bytes, first: int, width: int) -> int:
    """Match the two alternatives of o200k that match words, each with a character before it and without."""
    after = at if first & _NO_PREFIX else at + width
    end = _lower_word(data, after, stop, classes)
    if end == after and after > at:
        end = _lower_word(data, at, stop, classes)
        if end == at:
            end = _skip(data, after, stop, classes, UPPER)
            end = at if end == after else end
    if end == after == at:
        end = _skip(data, at, stop, classes, UPPER)
    return _contraction(data, end, stop) if end > at else at


@compiled
def _lower_word(data: Bytes, at: int, stop: int, classes: Bytes) -> int:
    """Match `[UPPER]*[LOWER]+`: the first run gives back as much as the second needs."""
    position, last = at, -1
    while True:
        kind, width = _look(data, position, stop, classes)
        if not kind & UPPER:
            break
        position += width
        if kind & LOWER:
            last = position
    if kind & LOWER:
        return _skip(data, position + width, stop, classes, LOWER)
    return at if last < 0 else last


@compiled
def _digits(data: Bytes, at: int, stop: int, classes: Bytes, most: int) -> int:
    """Match `\\p{N}{1,most}`."""
    for _ in range(most):
        kind, width = _look(data, at, stop, classes)
        if not kind & NUMBER:
            break
        at += width
    return at


@compiled
def _other(data: Bytes, at: int, stop: int, classes: Bytes) -> int:
    """Match ` ?[^\\s\\p{L}\\p{N}]+`."""
    begin = at + 1 if data[at] == _BLANK else at
    end = begin
    while True:
        kind, width = _look(data, end, stop, classes)
        if kind & _NOT_OTHER:
            return end if end > begin else at
        end += width


@compiled
def _spaces(data: Bytes, at: int, stop: int, classes: Bytes) -> int:
    """Match `\\s*[\\r\\n]+`, `\\s+(?!\\S)`, and `\\s+`."""
    end, before, newline = at, at, at
    while True:
        kind, width = _look(data, end, stop, classes)
        if not kind & SPACE:
            break
        before = end
        end += width
        if kind & NEWLINE:
            newline = end
    if newline > at:
        return newline
    return end if kind & END or before == at else before

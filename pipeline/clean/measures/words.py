"""Words: the longest runs of characters that are not white space, as Gopher has them."""

from typing import NamedTuple

import numpy as np

from pipeline.clean.measures.characters import (
    ASCII_LETTERS,
    BEGINS_WHITE,
    NEWLINE,
    Blocks,
    Bytes,
    Keys,
    count_byte,
    divide,
    find_runs,
    is_letter,
    read_block,
    read_stretch,
    wide_white,
)
from pipeline.clean.measures.names import STOP_WORDS
from pipeline.numba_compiler import compiled
from shards.format.arrays import Int32s

_BLOCK_BYTES = 8
_STOP_WORDS = np.frombuffer(b"".join(word.encode().rjust(_BLOCK_BYTES, b"\0") for word in STOP_WORDS), "<u8")
"""Each stop word as the last bytes of a block, zeros before it."""
_SMALL = np.uint64(0x2020202020202020)
_NOT_ASCII = np.uint64(0x8080808080808080)


class Words(NamedTuple):
    """The words of a document, in order."""

    starts: Int32s
    """Position of each word's first byte, `(words,)`."""
    stops: Int32s
    """Position behind its last."""
    keys: Keys
    """uint64 `(words,)`."""
    chars_before: Int32s
    """Characters of all words before each one, and of all, `(words + 1,)`."""


@compiled
def find_words(document: Bytes, blocks: Blocks) -> Words:
    """Find the words of a document."""
    edges = find_runs(_mark_words(document, blocks))
    starts, stops = edges[::2].copy(), edges[1::2].copy()
    keys = np.empty(len(starts), np.uint64)
    chars_before = np.zeros(len(starts) + 1, np.int32)
    for word in range(len(starts)):
        keys[word], chars = read_stretch(blocks, starts[word], stops[word])
        chars_before[word + 1] = chars_before[word] + chars
    return Words(starts, stops, keys, chars_before)


@compiled
def _mark_words(document: Bytes, blocks: Blocks) -> Bytes:
    """Return which bytes are in words, 1 or 0, `(bytes,)`."""
    marks = np.empty(len(document), np.uint8)
    for at in range(len(document)):  # comparisons alone, no table: many bytes at once
        byte = document[at]  # the white space of ASCII:
        white = (byte == 0x20) | ((byte >= 0x09) & (byte <= 0x0D)) | ((byte >= 0x1C) & (byte <= 0x1F))
        marks[at] = not white
    for index in range(len(blocks)):
        if blocks[index] & _NOT_ASCII:
            for at in range(8 * index, min(8 * index + 8, len(document))):
                if BEGINS_WHITE[document[at]]:
                    marks[at : at + wide_white(document, at)] = 0
    return marks


@compiled
def measure_words(document: Bytes, blocks: Blocks, words: Words) -> tuple[float, ...]:
    """Measure the words of a document."""
    count = len(words.starts)
    chars = words.chars_before
    longest = alphabetic = stop_words = 0
    for word in range(count):
        longest = max(longest, chars[word + 1] - chars[word])
        start, stop = words.starts[word], words.stops[word]
        alphabetic += int(ASCII_LETTERS[document[start]] or _has_letter(document, start, stop))
        stop_words |= _match_stop_words(read_block(blocks, start), stop - start)
    return (
        float(count),
        divide(chars[count], count),
        float(longest),
        divide(alphabetic, count),
        float(_count_bits(stop_words)),
        divide(count_byte(document, ord("#")), count),
        divide(_count_ellipses(document), count),
        divide(count_byte(document, NEWLINE), count),
    )


@compiled
def _has_letter(document: Bytes, start: int, stop: int) -> bool:
    for at in range(start, stop):  # noqa: SIM110  numba compiles no generators
        if is_letter(document, at):
            return True
    return False


@compiled
def _match_stop_words(block: np.uint64, size: int) -> int:
    """Return a bit for each stop word that a word is, in any case of its letters, by its first eight bytes and size."""
    # No other byte becomes a letter. Of a word of eight bytes and more, none becomes 0, and stop words are shorter.
    folded = (block | _SMALL) << np.uint64(8 * (_BLOCK_BYTES - min(size, _BLOCK_BYTES)))
    bits = 0
    for number in range(len(_STOP_WORDS)):
        bits |= int(folded == _STOP_WORDS[number]) << number
    return bits


@compiled
def _count_bits(bits: int) -> int:
    count = 0
    while bits:
        count += bits & 1
        bits >>= 1
    return count


@compiled
def _count_ellipses(document: Bytes) -> int:
    """Count among words the ellipses: ... or …."""
    ellipses, at = 0, 2
    while at < len(document):  # a third dot or byte: only there are the bytes before it checked
        last = document[at]
        if last == ord(".") and document[at - 1] == last and document[at - 2] == last:
            ellipses += 1
            at += 2
        elif last == 0xA6 and document[at - 1] == 0x80 and document[at - 2] == 0xE2:  # U+2026
            ellipses += 1
        at += 1
    return ellipses

"""Shingles of documents: tokens are spelled as text, and the words of text are hashed, five consecutive ones together.

Compiled for `pipeline.mix.near_duplicates.normal_text`, which says what a word is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.characters import FIRST_WIDE, finalize, read_stretch
from pipeline.clean.measures.names import ALONE, MOVES, WHITE
from pipeline.clean.measures.names import SHINGLE_WORDS as WIDTH
from pipeline.numba_compiler import compiled, compiled_and_kept

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Int64s, UInt8s, UInt64s, UIntegers
    from pipeline.clean.measures.characters import Blocks, Bytes

_NEAR = 32
"""Stretches that are so many bytes apart are one: each costs 0.5 µs."""
_BASE = np.uint64(0x9E3779B97F4A7C15)
_NOT_ASCII = np.uint64(0x8080808080808080)


@compiled_and_kept
def spell(tokens: UIntegers, stops: Int64s, entries: Blocks, edges: Int64s, sizes: Int64s, blocks: Blocks) -> Int64s:
    """Spell documents: write the bytes of their tokens.

    Args:
        tokens: of the documents, one after the other.
        stops: one past the last token of each, `(documents,)`.
        entries: the bytes of each id in numbers of eight bytes, with zeros behind them.
        edges: where those of an id begin in `entries`, `(ids + 1,)`.
        sizes: the bytes of each number, 1 to 8, `(len(entries),)`.
        blocks: filled in.

    Returns:
        One past the last byte of each document, `(documents,)`.
    """
    ends = np.empty(len(stops), np.int64)
    block = np.uint64(0)
    at = filled = token = 0
    for document in range(len(stops)):
        for token in range(stops[document - 1] if document else 0, stops[document]):
            for part in range(edges[tokens[token]], edges[tokens[token] + 1]):
                # Nothing branches on whether a block is full: it would be predicted wrong every other time.
                joined = block | entries[part] << np.uint64(8 * filled)
                rest = entries[part] >> np.uint64(1) >> np.uint64(63 - 8 * filled)
                blocks[at] = joined
                filled += sizes[part]
                block = rest if filled >> 3 else joined
                at += filled >> 3
                filled &= 7
        ends[document] = 8 * at + filled
    blocks[at] = block
    return ends


@compiled_and_kept
def find_moving(blocks: Blocks, ends: Int64s, kinds: UInt8s) -> Int64s:
    """Find the stretches of documents that the normal form may change, each with the character before, `(found, 2)`.

    What follows a stretch, and what it begins with, joins nothing before it.
    """
    text = blocks.view(np.uint8)
    found = np.empty(ends[-1] + 2, np.int64)
    edges = at = document = 0
    while at < ends[-1]:
        if (at & 7) == 0 and not blocks[at >> 3] & _NOT_ASCII:
            at += 8
            continue
        code, length = read_character(text, at)
        if not kinds[code] & MOVES:
            at += length
            continue
        while ends[document] <= at:
            document += 1
        begin = ends[document - 1] if document else 0
        start = max(at - 1, begin)
        while 0x80 <= text[start] < FIRST_WIDE:
            start -= 1
        while at < ends[document] and kinds[code] & MOVES:
            at += length
            code, length = read_character(text, at)
        if edges and found[edges - 1] >= max(begin, start - _NEAR):
            edges -= 1
        else:
            found[edges] = start
            edges += 1
        found[edges] = at
        edges += 1
    return found[:edges].reshape(-1, 2)


@compiled
def read_character(text: Bytes, at: int) -> tuple[int, int]:
    """Return the code point of the character that begins at a byte, and how many bytes it has."""
    lead = int(text[at])
    if lead < 0x80:
        return lead, 1
    size = 2 + (lead >= 0xE0) + (lead >= 0xF0)
    code = lead & (0x7F >> size)
    for place in range(at + 1, at + size):
        code = code << 6 | int(text[place]) & 0x3F
    return code, size


@compiled_and_kept
def hash_words(
    blocks: Blocks, ends: Int64s, closed: int, kinds: UInt8s, last: UInt64s, hashes: UInt64s, sums: Int64s
) -> int:
    """Hash the shingles of documents in normal form; one with fewer than `WIDTH` words has one, of all its words.

    Args:
        blocks: the documents, one after the other.
        ends: one past the last byte of each, `(documents,)`.
        closed: how many end here; one that does not goes on in the next call.
        kinds: the kind of each character, 0 if it has none.
        last: the last words of a document that goes on, and how many it has, `(WIDTH + 1,)`; kept up to date.
        hashes: filled in.
        sums: the shingles of each document, and the characters of its words; filled in, `(documents, 2)`.

    Returns:
        The shingles of all.
    """
    text = blocks.view(np.uint8)
    made = at = 0
    for document in range(len(ends)):
        first, chars, start = made, 0, at
        while at <= ends[document]:
            code, length = (0x20, 1) if at == ends[document] else read_character(text, at)
            kind = kinds[code]
            if kind & (WHITE | ALONE):
                # The word before ends, and the character may be a word.
                for stop in (at, at + length if kind & ALONE else at):
                    if start < stop:
                        key, size = read_stretch(blocks, start, stop)
                        _add_word(last, key)
                        if last[WIDTH] >= WIDTH:
                            hashes[made] = _hash_shingle(last)
                            made += 1
                        chars += size
                        start = stop
                start = at + length
            at += length
        at = ends[document]
        if document < closed:
            if last[WIDTH] < WIDTH:
                hashes[made] = _hash_shingle(last)
                made += 1
            for place in range(WIDTH + 1):
                last[place] = 0
        sums[document, 0], sums[document, 1] = made - first, chars
    return made


@compiled
def _add_word(last: UInt64s, key: np.uint64) -> None:
    for place in range(WIDTH - 1):
        last[place] = last[place + 1]
    last[WIDTH - 1] = key
    last[WIDTH] += np.uint64(1)


@compiled
def _hash_shingle(last: UInt64s) -> np.uint64:
    key = np.uint64(0)
    for place in range(WIDTH):
        key = key * _BASE + last[place]
    return finalize(key)

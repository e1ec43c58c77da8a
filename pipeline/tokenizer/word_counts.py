"""Count the pre-tokens of a sample file, with a thread for each part of it.

Memory grows with the distinct pre-tokens; the sample is mapped, not read. Prose has about 3 distinct ones for each
kilobyte.
"""

# Where Python has `int`, compiled code has `np.int64`.
# pyright: reportArgumentType=false, reportReturnType=false, reportAssignmentType=false
from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.numba_compiler import compiled, compiled_and_kept
from pipeline.tokenizer.scanner import (
    END_OF_TEXT,
    LETTER,
    LOWER,
    NEWLINE,
    NUMBER,
    PATTERN_NUMBERS,
    SPACE,
    UPPER,
    Bytes,
    cut,
    see,
)

_KINDS = {
    r"\p{L}": LETTER,
    r"\p{N}": NUMBER,
    r"\s": SPACE,
    r"[\r\n]": NEWLINE,
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]": UPPER,
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]": LOWER,
}
_CODE_POINTS = 0x110000
_ROOM = 1 << 16
"""Words that a table has room for at first."""
_PACKED = 16
"""Words of up to this many bytes are compared by their keys alone: reading them again would be a miss of the caches."""

Slots = npt.NDArray[np.int64]
Symbols = npt.NDArray[np.int32]
Words = npt.NDArray[np.int64]
"""Distinct words, `(words, 5)`: the columns below."""
KEY, TAIL, OFFSET, LENGTH, COUNT = range(5)
"""The first 8 bytes of a short word, or the hash of a long one; the next 8 bytes, or 0; where the word occurs in the
text; how many bytes it has; how often it occurs."""


def count_words(path: Path, pretokenizer: str, threads: int) -> tuple[Bytes, Words]:
    """Count the distinct pre-tokens of the documents of a sample file.

    Args:
        path: the sample; each document ends with `END_OF_TEXT`.
        pretokenizer: a name that recipes use.
        threads: parts that are counted at the same time.

    Returns:
        The bytes of the file, mapped, and the counts.
    """
    if not path.stat().st_size:
        return np.zeros(0, np.uint8), np.zeros((0, 5), np.int64)
    data = np.asarray(np.memmap(path, np.uint8, "r"))
    parts = list(itertools.pairwise(_edges(data, threads)))
    seen = np.zeros(_CODE_POINTS, np.bool_)

    def see_part(part: tuple[int, int]) -> None:
        see(data, *part, seen)

    def count_part(part: tuple[int, int]) -> Words:
        return _count(data, *part, classes, PATTERN_NUMBERS[pretokenizer])

    # First which characters there are, so that the engine is asked about those alone; then count.
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(see_part, parts))
        classes = _classes(seen)
        words = np.concatenate(list(pool.map(count_part, parts)))
    return data, _add_up(data, words)


def _edges(data: Bytes, parts: int) -> list[int]:
    """Return where the parts begin, at the beginning of documents, and where the last ends."""
    edges = [0]
    for k in range(1, parts):
        at = max(edges[-1], len(data) * k // parts)
        edges.append(int(_next_document(data, at)) if at else 0)
    return [*edges, len(data)]


@compiled_and_kept
def _next_document(data: Bytes, at: int) -> int:
    """Return where the first document begins from a byte on."""
    while at < len(data) and data[at - 1] != END_OF_TEXT:
        at += 1
    return at


def _classes(seen: npt.NDArray[np.bool_]) -> Bytes:
    """Return what each character is that occurs, by asking the engine of `tokenizers`."""
    from tokenizers import Regex, pre_tokenizers

    codes = np.flatnonzero(seen)
    text = codes.astype("<u4").tobytes().decode("utf-32-le")
    classes = np.zeros(_CODE_POINTS, np.uint8)
    for pattern, kind in _KINDS.items():
        others = np.zeros(len(codes), np.bool_)
        for _, (start, stop) in pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str(text):
            others[start:stop] = True
        classes[codes[~others]] |= kind
    return classes


def _count(data: Bytes, start: int, stop: int, classes: Bytes, pattern: int) -> Words:
    """Count the pre-tokens of a part, in a hash table of the numbers of words plus 1."""
    words, slots = np.empty((_ROOM, 5), np.int64), np.zeros(2 * _ROOM, np.int64)
    spans = np.ones((_ROOM // 2, 3), np.int64)
    at, size = start, 0
    while at < stop:
        # Cut as much as there are spans for, with room for as many new words.
        at, cuts = cut(data, at, stop, classes, pattern, spans)
        if size + cuts > len(words):
            words = np.concatenate([words, np.empty_like(words)])
            slots = _number(words, size)
        size = _add(data, spans[:cuts], words, slots, size)
    return words[:size]


def _add_up(data: Bytes, words: Words) -> Words:
    """Return counted words, equal ones as one."""
    total, slots = np.empty_like(words), np.zeros(2 << max(_ROOM, len(words)).bit_length(), np.int64)
    spans = np.stack([words[:, OFFSET], words[:, OFFSET] + words[:, LENGTH], words[:, COUNT]], axis=1)
    return total[: _add(data, spans, total, slots, 0)]


@compiled_and_kept
def _add(data: Bytes, spans: npt.NDArray[np.int64], words: Words, slots: Slots, size: int) -> int:
    """Count words; return how many distinct ones there are now.

    Args:
        data: the text.
        spans: where each begins and ends, and how often it counts, `(words, 3)`.
        words: the table, with room for them.
        slots: the hash table of its rows.
        size: the rows so far.
    """
    for k in range(len(spans)):
        at, end = spans[k, 0], spans[k, 1]
        key, tail = _keys(data, at, end)
        slot = _find(data, key, tail, at, end - at, words, slots)
        if slots[slot]:
            words[slots[slot] - 1, COUNT] += spans[k, 2]
        else:
            words[size, KEY], words[size, TAIL] = key, tail
            words[size, OFFSET], words[size, LENGTH], words[size, COUNT] = at, end - at, spans[k, 2]
            size += 1
            slots[slot] = size
    return size


@compiled
def _keys(data: Bytes, start: int, stop: int) -> tuple[int, int]:
    """Return the bytes of a short word as two numbers, or the 64-bit FNV-1a hash of a long one and 0."""
    if stop - start <= _PACKED:
        return _pack(data, start, min(stop, start + 8)), _pack(data, start + 8, stop)
    value = np.uint64(0xCBF29CE484222325)
    for k in range(start, stop):
        value = (value ^ np.uint64(data[k])) * np.uint64(0x100000001B3)
    return np.int64(value), 0


@compiled
def _pack(data: Bytes, start: int, stop: int) -> int:
    value = np.int64(0)
    for k in range(start, stop):
        value = value << 8 | np.int64(data[k])
    return value


@compiled
def _first_slot(key: int, tail: int, slots: Slots) -> int:
    mixed = (np.uint64(key) ^ np.uint64(tail) * np.uint64(0xC2B2AE3D27D4EB4F)) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ mixed >> np.uint64(32)) & np.uint64(len(slots) - 1))


@compiled
def _find(data: Bytes, key: int, tail: int, offset: int, length: int, words: Words, slots: Slots) -> int:
    """Return the slot of a word, or the empty slot where the word belongs."""
    slot = _first_slot(key, tail, slots)
    while slots[slot]:
        word = slots[slot] - 1
        if words[word, KEY] == key and words[word, TAIL] == tail and words[word, LENGTH] == length:
            # Keys of short words have all their bytes; of long ones, compare the bytes.
            k, other = 0 if length > _PACKED else length, words[word, OFFSET]
            while k < length and data[other + k] == data[offset + k]:
                k += 1
            if k == length:
                break
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@compiled_and_kept
def _number(words: Words, size: int) -> Slots:
    """Return the hash table of distinct words, twice as large as the room for them."""
    slots = np.zeros(2 * len(words), np.int64)
    for word in range(size):
        slot = _first_slot(words[word, KEY], words[word, TAIL], slots)
        while slots[slot]:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = word + 1
    return slots


@compiled_and_kept
def spell(data: Bytes, words: Words, numbers: Symbols) -> tuple[Symbols, npt.NDArray[np.int64]]:
    """Return the bytes of counted words as numbers, word after word; and where each word begins and the last ends."""
    starts = np.zeros(len(words) + 1, np.int64)
    for word in range(len(words)):
        starts[word + 1] = starts[word] + words[word, LENGTH]
    symbols = np.empty(starts[-1], np.int32)
    for word in range(len(words)):
        for k in range(words[word, LENGTH]):
            symbols[starts[word] + k] = numbers[data[words[word, OFFSET] + k]]
    return symbols, starts

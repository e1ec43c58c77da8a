"""Learn BPE merges from counted words, as the trainer of `tokenizers` does, to the last tie.

A heap holds pairs of entries with their counts: the most frequent pair is merged first; of equally frequent pairs, the
one with the smaller ids. Bytes have ids in the order of their byte-level characters; merges have the ids after them.
Each pair has a list of the words that it came up in; a merge visits no other words. As in `tokenizers`,

- the count of a pair in the heap may be too high; it is looked up again when the pair is on top,
- training ends with the vocabulary full or with no pair left.

No two merges make the same bytes. Until a stretch of a word is one symbol, no merge crosses its edges, so that inside
every merge did what it does in a word that is only this stretch: wherever it becomes a symbol, the same merge makes it.
So all places of a symbol come up in one merge, and all places of a pair in the merge that makes the younger of its two
symbols: a pair is in the heap once, and is merged once.

Time is linear in the symbols of the distinct words, and so is memory, about 60 bytes a symbol.
"""

# Where Python has `int`, compiled code has `np.int64`.
# pyright: reportArgumentType=false, reportReturnType=false, reportAssignmentType=false
from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from pipeline.numba_compiler import compiled, compiled_and_kept
from pipeline.tokenizer.word_counts import COUNT, LENGTH, Words, spell
from shards.format.tokenizer_json import byte_characters

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

_ROOM = 1 << 18
"""Rows of the table of pairs at first."""
_BYTE_PAIRS = 1 << 16
PAIR, NUMBER, LIST = range(3)
"""Columns of the table of pairs: the pair plus 1, or 0 in an empty row; its count; the list of the words that the merge
at hand makes it in, or 0."""
WORD, NEXT = range(2)
"""Columns of the lists: a word, and the row of the next one, or 0."""
PAIRS, TOUCHED, FREE, USED = range(4)
"""Numbers that change: pairs in the table, pairs that the merge at hand makes, the first row of the lists that is free
again, and the rows that were ever used."""


def learn_merges(data: npt.NDArray[np.uint8], words: Words, entries: int) -> list[tuple[bytes, bytes]]:
    """Learn merges from counted words.

    Args:
        data: the text that the words are in.
        words: from `count_words`.
        entries: wanted, bytes included.

    Returns:
        The merges in order; fewer than wanted if no pair is left.
    """
    characters = byte_characters()
    order = sorted(range(256), key=lambda byte: characters[byte])
    ranks = np.empty(256, np.int32)
    ranks[order] = np.arange(256)
    words = words[words[:, LENGTH] > 1]
    symbols, starts = spell(data, words, ranks)
    # A merge removes a symbol and makes two pairs at most, so this is enough. Rows never used take no memory.
    rows = 3 * len(symbols) + 1
    lists = np.empty((rows, 2), np.int32 if rows < 1 << 31 else np.int64)
    lengths, counts = words[:, LENGTH].copy(), words[:, COUNT].copy()
    texts = [bytes([byte]) for byte in order]
    merges: list[tuple[bytes, bytes]] = []
    pairs: list[list[int]] = _learn(symbols, starts, lengths, counts, lists, max(0, entries - len(texts))).tolist()
    for left, right in pairs:
        merges.append((texts[left], texts[right]))
        texts.append(b"".join(merges[-1]))
    return merges


@compiled_and_kept
def _learn(symbols: Ints, starts: Longs, lengths: Longs, counts: Longs, lists: Ints | Longs, most: int) -> Longs:
    """Learn at most so many merges; return the ids of each, `(merges, 2)`."""
    pairs, numbers = np.zeros((_ROOM, 3), np.int64), np.zeros(4, np.int64)
    touched = np.empty(max(_BYTE_PAIRS, 2 * (most + 256)), np.int64)
    merges = np.empty((most, 2), np.int64)
    heap = [(np.int64(0), np.int64(0), np.int64(0))]
    heap.clear()
    # Count the pairs of all words, and list the words of each.
    for word in range(len(counts)):
        for k in range(starts[word], starts[word + 1] - 1):
            _make(symbols[k], symbols[k + 1], counts[word], word, pairs, lists, touched, numbers)
    for done in range(most):
        # Move the pairs that the last merge made to the heap.
        for k in range(numbers[TOUCHED]):
            row = touched[k]
            head = pairs[row, LIST]
            pairs[row, LIST] = 0
            if pairs[row, NUMBER] > 0:
                heapq.heappush(heap, (-pairs[row, NUMBER], pairs[row, PAIR] - 1, head))
            while head and pairs[row, NUMBER] <= 0:
                head = _free(head, lists, numbers)
        numbers[TOUCHED] = 0
        # Correct the counts on top until one is right.
        count = np.int64(0)
        while len(heap):
            lost, pair, head = heap[0]
            count = pairs[_find(pair >> 32, pair & 0xFFFFFFFF, pairs), NUMBER]
            if count == -lost:
                break
            heapq.heapreplace(heap, (-count, pair, head))
        if count <= 0:  # no pair occurs any more
            return merges[:done]
        _, pair, head = heapq.heappop(heap)
        # Merge it, in a table that has room for the pairs which that can make.
        while 2 * (numbers[PAIRS] + len(touched)) > len(pairs):
            pairs = _larger_table(pairs)
        merges[done, 0], merges[done, 1] = pair >> 32, pair & 0xFFFFFFFF
        _merge(merges[done, 0], merges[done, 1], 256 + done, head, symbols, starts, lengths, counts, pairs, lists,
               touched, numbers)  # fmt: skip
    return merges


@compiled
def _merge(
    left: int,
    right: int,
    new: int,
    head: int,
    symbols: Ints,
    starts: Longs,
    lengths: Longs,
    counts: Longs,
    pairs: Longs,
    lists: Ints | Longs,
    touched: Longs,
    numbers: Longs,
) -> None:
    """Merge a pair in the words of a list, which is freed; count the pairs that this makes and breaks."""
    while head:
        word = np.int64(lists[head, WORD])
        start, count = starts[word], counts[word]
        at, end, out = start, start + lengths[word], start
        # Write the symbols again, the pair as one; of its neighbours, count the pairs that go and those that come.
        while at < end:
            if symbols[at] == left and at + 1 < end and symbols[at + 1] == right:
                if out > start:
                    pairs[_find(symbols[out - 1], left, pairs), NUMBER] -= count
                    _make(symbols[out - 1], new, count, word, pairs, lists, touched, numbers)
                symbols[out] = new
                at += 2
                if at < end:
                    pairs[_find(right, symbols[at], pairs), NUMBER] -= count
                    _make(new, symbols[at], count, word, pairs, lists, touched, numbers)
            else:
                symbols[out] = symbols[at]
                at += 1
            out += 1
        lengths[word] = out - start
        head = _free(head, lists, numbers)


@compiled
def _free(row: int, lists: Ints | Longs, numbers: Longs) -> int:
    """Free a row of the lists; return the next row of its list, or 0."""
    following = np.int64(lists[row, NEXT])
    lists[row, NEXT] = numbers[FREE]
    numbers[FREE] = row
    return following


@compiled
def _find(left: int, right: int, pairs: Longs) -> int:
    """Return the row of a pair, or the empty one where it belongs."""
    pair = (np.int64(left) << 32 | np.int64(right)) + 1
    mixed = np.uint64(pair) * np.uint64(0x9E3779B97F4A7C15)
    row = np.int64((mixed ^ mixed >> np.uint64(32)) & np.uint64(len(pairs) - 1))
    while pairs[row, PAIR] and pairs[row, PAIR] != pair:
        row = (row + 1) & (len(pairs) - 1)
    return row


@compiled
def _make(
    left: int, right: int, count: int, word: int, pairs: Longs, lists: Ints | Longs, touched: Longs, numbers: Longs
) -> None:
    """Count a pair that a word has got, and add the word to the pair's list."""
    row = _find(left, right, pairs)
    if not pairs[row, PAIR]:
        pairs[row, PAIR] = (np.int64(left) << 32 | np.int64(right)) + 1
        numbers[PAIRS] += 1
    pairs[row, NUMBER] += count
    head = pairs[row, LIST]
    if head and lists[head, WORD] == word:
        return
    if not head:
        touched[numbers[TOUCHED]] = row
        numbers[TOUCHED] += 1
    new = numbers[FREE]
    if new:
        numbers[FREE] = lists[new, NEXT]
    else:
        numbers[USED] += 1
        new = numbers[USED]
    lists[new, WORD], lists[new, NEXT] = word, head
    pairs[row, LIST] = new


@compiled
def _larger_table(pairs: Longs) -> Longs:
    larger = np.zeros((2 * len(pairs), 3), np.int64)
    for row in range(len(pairs)):
        pair = pairs[row, PAIR] - 1
        if pair >= 0:
            place = _find(pair >> 32, pair & 0xFFFFFFFF, larger)
            larger[place, PAIR], larger[place, NUMBER] = pair + 1, pairs[row, NUMBER]
    return larger

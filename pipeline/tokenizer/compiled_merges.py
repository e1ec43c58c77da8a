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
at hand makes it in, or 0. In the heap: the pair, its count when it was last updated, the list of its words."""
WORD, NEXT = range(2)
"""Columns of the lists: a word, and the row of the next one, or 0."""
PAIRS, TOUCHED, HEAP, FREE, USED = range(5)
"""Numbers that change: pairs in the table, pairs that the merge at hand makes, pairs in the heap, the first row of the
lists that is free again, and the rows that were ever used."""


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
    trainer = _Trainer(data, words[words[:, LENGTH] > 1], ranks, entries)
    texts = [bytes([byte]) for byte in order]
    merges: list[tuple[bytes, bytes]] = []
    while len(texts) < entries and (pair := trainer.find_most_frequent()) is not None:
        trainer.merge(*pair, len(texts))
        merges.append((texts[pair[0]], texts[pair[1]]))
        texts.append(b"".join(merges[-1]))
    return merges


class _Trainer:
    """The words as symbols, and the pairs in them."""

    def __init__(self, data: npt.NDArray[np.uint8], words: Words, ranks: Ints, entries: int):
        self.symbols, self.starts = spell(data, words, ranks)
        self.lengths, self.counts = words[:, LENGTH].copy(), words[:, COUNT].copy()
        self.pairs = np.zeros((_ROOM, 3), np.int64)
        self.touched = np.empty(max(_BYTE_PAIRS, 2 * entries), np.int64)
        self.heap = np.empty((_ROOM, 3), np.int64)
        # A merge removes a symbol and makes two pairs at most, so this is enough. Rows never used take no memory.
        rows = 3 * len(self.symbols) + 1
        self.lists = np.empty((rows, 2), np.int32 if rows < 1 << 31 else np.int64)
        self.numbers = np.zeros(5, np.int64)
        _list_pairs(self.symbols, self.starts, self.counts, self.pairs, self.lists, self.touched, self.numbers)
        _push_touched(self.pairs, self.lists, self.touched, self.heap, self.numbers)

    def find_most_frequent(self) -> tuple[int, int] | None:
        """Return the next pair to merge, which leads the heap; None if no pair is left."""
        pair = _update_top(self.heap, self.pairs, self.numbers)
        return None if pair < 0 else (pair >> 32, pair & 0xFFFFFFFF)

    def merge(self, left: int, right: int, new: int) -> None:
        """Merge the pair that leads the heap."""
        most = len(self.touched)  # pairs that one merge can make
        if 2 * (self.numbers[PAIRS] + most) > len(self.pairs):
            self.pairs = _larger_table(self.pairs)
        if self.numbers[HEAP] + most > len(self.heap):
            self.heap = np.concatenate([self.heap, np.empty_like(self.heap)])
        head = _pop(self.heap, self.numbers)
        parts = (self.symbols, self.starts, self.lengths, self.counts, self.pairs, self.lists, self.touched)
        _merge(left, right, new, head, *parts, self.numbers)
        _push_touched(self.pairs, self.lists, self.touched, self.heap, self.numbers)


@compiled_and_kept
def _list_pairs(
    symbols: Ints, starts: Longs, counts: Longs, pairs: Longs, lists: Ints | Longs, touched: Longs, numbers: Longs
) -> None:
    """Count the pairs of all words, and list the words of each."""
    for word in range(len(counts)):
        for k in range(starts[word], starts[word + 1] - 1):
            _make(symbols[k], symbols[k + 1], counts[word], word, pairs, lists, touched, numbers)


@compiled_and_kept
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
        following = lists[head, NEXT]
        lists[head, NEXT] = numbers[FREE]
        numbers[FREE] = head
        head = np.int64(following)


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


@compiled_and_kept
def _larger_table(pairs: Longs) -> Longs:
    larger = np.zeros((2 * len(pairs), 3), np.int64)
    for row in range(len(pairs)):
        pair = pairs[row, PAIR] - 1
        if pair >= 0:
            place = _find(pair >> 32, pair & 0xFFFFFFFF, larger)
            larger[place, PAIR], larger[place, NUMBER] = pair + 1, pairs[row, NUMBER]
    return larger


@compiled_and_kept
def _push_touched(pairs: Longs, lists: Ints | Longs, touched: Longs, heap: Longs, numbers: Longs) -> None:
    """Move the pairs that the last merge made to the heap."""
    for k in range(numbers[TOUCHED]):
        row = touched[k]
        head = pairs[row, LIST]
        pairs[row, LIST] = 0
        if pairs[row, NUMBER] > 0:
            at = numbers[HEAP]
            numbers[HEAP] += 1
            heap[at, PAIR], heap[at, NUMBER], heap[at, LIST] = pairs[row, PAIR] - 1, pairs[row, NUMBER], head
            _rise(heap, at)
            continue
        while head:
            following = np.int64(lists[head, NEXT])
            lists[head, NEXT] = numbers[FREE]
            numbers[FREE] = head
            head = following
    numbers[TOUCHED] = 0


@compiled_and_kept
def _update_top(heap: Longs, pairs: Longs, numbers: Longs) -> int:
    """Correct the counts of the pairs on top until one is right; return it, or -1 if no pair occurs any more."""
    while numbers[HEAP]:
        pair = heap[0, PAIR]
        count = pairs[_find(pair >> 32, pair & 0xFFFFFFFF, pairs), NUMBER]
        if count == heap[0, NUMBER]:
            return pair if count > 0 else -1
        heap[0, NUMBER] = count
        _sink(heap, numbers[HEAP])
    return -1


@compiled_and_kept
def _pop(heap: Longs, numbers: Longs) -> int:
    """Take the top from the heap; return its list of words."""
    head = heap[0, LIST]
    numbers[HEAP] -= 1
    _swap(heap, 0, numbers[HEAP])
    _sink(heap, numbers[HEAP])
    return head


@compiled
def _before(heap: Longs, one: int, other: int) -> bool:
    if heap[one, NUMBER] != heap[other, NUMBER]:
        return heap[one, NUMBER] > heap[other, NUMBER]
    return heap[one, PAIR] < heap[other, PAIR]


@compiled
def _swap(heap: Longs, one: int, other: int) -> None:
    for column in range(3):
        heap[one, column], heap[other, column] = heap[other, column], heap[one, column]


@compiled
def _rise(heap: Longs, at: int) -> None:
    while at and _before(heap, at, (at - 1) // 2):
        _swap(heap, at, (at - 1) // 2)
        at = (at - 1) // 2


@compiled
def _sink(heap: Longs, size: int) -> None:
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _before(heap, child + 1, child):
            child += 1
        if not _before(heap, child, at):
            break
        _swap(heap, child, at)
        at = child

"""Repetition inside a document: lines, paragraphs and n-grams of words that occur before, as shares.

Two lines or paragraphs are equal when their words are. Only the characters of words count, not white space.
"""

import numpy as np

from pipeline.clean.measures.characters import Keys, chain, divide, find_first, make_table
from pipeline.clean.measures.lines import Lines
from pipeline.clean.measures.names import DUPLICATE_SIZES, TOP_SIZES
from pipeline.clean.measures.words import Words
from pipeline.numba_compiler import compiled
from shards.format.arrays import Float64s, Int32s

_LARGEST_TOP = TOP_SIZES[-1]
_LARGEST = DUPLICATE_SIZES[-1]


@compiled
def measure_repeated_lines(words: Words, lines: Lines) -> tuple[float, ...]:
    """Measure which lines, and which paragraphs, are equal to an earlier one."""
    all_chars = words.chars_before[-1]
    keys, chars_before = _join(words.keys, words.chars_before, lines.firsts)
    repeated, chars = _count_repeated(keys, chars_before)
    share, share_of_chars = divide(repeated, len(keys)), divide(chars, all_chars)
    # Of words, not of lines: a paragraph stays equal where its lines break at other words.
    keys, chars_before = _join(words.keys, words.chars_before, lines.firsts[lines.paragraphs])
    repeated, chars = _count_repeated(keys, chars_before)
    return share, share_of_chars, divide(repeated, len(keys)), divide(chars, all_chars)


@compiled
def _join(keys: Keys, chars_before: Int32s, firsts: Int32s) -> tuple[Keys, Int32s]:
    """Return keys and characters of lines or paragraphs to compare: the words firsts[i] to firsts[i + 1] become one."""
    joined, joined_before = np.zeros(len(firsts) - 1, np.uint64), np.zeros(len(firsts), np.int32)
    for part in range(len(joined)):
        for index in range(firsts[part], firsts[part + 1]):
            joined[part] = chain(joined[part], keys[index])
        joined_before[part + 1] = chars_before[firsts[part + 1]]
    return joined, joined_before


@compiled
def _count_repeated(keys: Keys, chars_before: Int32s) -> tuple[int, int]:
    """Return how many keys repeat an earlier one, and their characters."""
    table = make_table(len(keys))
    repeated = chars = 0
    for index in range(len(keys)):
        if find_first(table, keys, index) < index:
            repeated += 1
            chars += chars_before[index + 1] - chars_before[index]
    return repeated, chars


@compiled
def measure_ngrams(words: Words) -> Float64s:
    """Measure the n-grams of each size that occur more than once.

    Longer n-grams are looked for only if a shorter one repeats, here and at the next word: at size 3, 5% of the words
    of prose are left, and a third of the words of code.
    """
    shares = np.zeros(_LARGEST - 1)
    all_chars = words.chars_before[-1]
    at = np.empty(max(len(words.keys) - 1, 0), np.int32)
    keys = np.empty(len(at), np.uint64)
    for index in range(len(at)):
        at[index] = index
        keys[index] = chain(words.keys[index], words.keys[index + 1])
    for size in range(2, _LARGEST + 1):
        count = _count_equal(keys)
        if size <= _LARGEST_TOP:
            # Overlapping occurrences ("ha ha ha") can count a character twice.
            shares[size - 2] = min(divide(_chars_of_top(words, at, count, size), all_chars), 1.0)
        else:
            shares[size - 2] = divide(_chars_of_duplicates(words, at, count, size), all_chars)
        left = _lengthen(words, at, keys, count, size)
        at, keys = at[:left], keys[:left]
    return shares


@compiled
def _count_equal(keys: Keys) -> Int32s:
    """Return how often each key is repeated, where it occurs first, and 0 where it occurred before."""
    table = make_table(len(keys))
    count = np.zeros(len(keys), np.int32)
    for index in range(len(keys)):
        count[find_first(table, keys, index)] += 1
    return count


@compiled
def _chars_of_top(words: Words, at: Int32s, count: Int32s, size: int) -> int:
    """Return the characters of all repetitions of the most frequent n-gram; of several, of the longest one."""
    most, longest = 2, 0
    for index in range(len(at)):
        if count[index] >= most:
            first = int(at[index])
            chars = int(words.chars_before[first + size] - words.chars_before[first])
            longest = max(longest, chars) if count[index] == most else chars
            most = int(count[index])
    return most * longest


@compiled
def _chars_of_duplicates(words: Words, at: Int32s, count: Int32s, size: int) -> int:
    """Return the characters in repeated n-grams; where they overlap, characters count once."""
    chars = end = 0
    for index in range(len(at)):
        if count[index] == 0:
            first = int(at[index])
            chars += int(words.chars_before[first + size] - words.chars_before[max(first, end)])
            end = first + size
    return chars


@compiled
def _lengthen(words: Words, at: Int32s, keys: Keys, count: Int32s, size: int) -> int:
    """Move the n-grams with one more word that may repeat to the beginning of the arrays; return their number."""
    left = 0
    for index in range(len(at) - 1):
        if count[index] != 1 and count[index + 1] != 1 and at[index + 1] == at[index] + 1:
            at[left] = at[index]
            keys[left] = chain(keys[index], words.keys[int(at[index]) + size])
            left += 1
    return left

"""The words of documents in the normal form of near-duplicates, hashed.

Compiled for `pipeline.mix.near_duplicates.normal_text`, which makes shingles of them.
"""

from pipeline.clean.measures.characters import Bytes, read_blocks
from pipeline.clean.measures.words import find_words
from pipeline.numba_compiler import compiled_and_kept
from shards.format.arrays import Int64s, UInt64s


@compiled_and_kept
def hash_words(text: Bytes, stops: Int64s, keys: UInt64s, sums: Int64s) -> int:
    """Hash the words of documents.

    Args:
        text: the documents, one byte between each and the next.
        stops: one past the last byte of each, `(documents,)`.
        keys: filled in.
        sums: the words of each document, and the characters in them; filled in, `(documents, 2)`.

    Returns:
        The words of all.
    """
    made = start = 0
    for number in range(len(stops)):
        document = text[start : stops[number]]
        words = find_words(document, read_blocks(document))
        for key in words.keys:
            keys[made] = key
            made += 1
        sums[number, 0], sums[number, 1] = len(words.keys), words.chars_before[-1]
        start = stops[number] + 1
    return made

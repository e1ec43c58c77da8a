"""The measures of documents, one after the other: each family's function, if one of its measures is wanted."""

from collections.abc import Sequence

import numpy as np

from pipeline.clean.measures.characters import Bytes, count_byte, read_blocks
from pipeline.clean.measures.code import measure_alphanumeric, measure_encoded, measure_literals
from pipeline.clean.measures.lines import find_lines, measure_lines, measure_sentences
from pipeline.clean.measures.names import FAMILIES
from pipeline.clean.measures.phrases import find_phrases, measure_generated
from pipeline.clean.measures.repetition import measure_ngrams, measure_repeated_lines
from pipeline.clean.measures.words import find_words, measure_words
from pipeline.numba_compiler import compiled, compiled_and_kept
from shards.format.arrays import Bools, Float32s, Float64s, Int64s

Row = Float32s
"""The measures of a document, in the order of `MEASURES`."""

(
    _WORDS, _LINES, _REPEATED_LINES, _NGRAMS, _PHRASES, _GENERATED, _SENTENCES, _ALPHANUMERIC, _LITERALS, _ENCODED,
) = np.cumsum([0, *(len(names) for names in FAMILIES.values())])[:-1]  # fmt: skip
"""The first column of each family."""


@compiled_and_kept
def measure_families(data: Bytes, offsets: Int64s, wanted: Bools, found: Float32s) -> None:
    """Measure documents, family after family.

    Args:
        data: their UTF-8, and maybe more.
        offsets: the documents are what is between two of them, `(documents + 1,)`; none is empty.
        wanted: which measures, `(measures,)`; a family is taken as a whole.
        found: filled in for the families that are wanted, `(documents, measures)`.
    """
    for number in range(len(offsets) - 1):
        _measure_text(data[offsets[number] : offsets[number + 1]], wanted, found[number])


@compiled
def _measure_text(document: Bytes, wanted: Bools, row: Row) -> None:
    blocks = read_blocks(document)
    words = find_words(document, blocks)
    lines = find_lines(document, words)
    if wanted[_WORDS]:
        _store(row, _WORDS, measure_words(document, blocks, words))
    if wanted[_LINES]:
        _store(row, _LINES, measure_lines(document, blocks, words, lines))
    if wanted[_REPEATED_LINES]:
        _store(row, _REPEATED_LINES, measure_repeated_lines(words, lines))
    if wanted[_NGRAMS]:
        _store(row, _NGRAMS, measure_ngrams(words))
    if wanted[_PHRASES] or wanted[_SENTENCES]:
        lorem_ipsum, flags = find_phrases(document, words, lines)
        row[_PHRASES], row[_PHRASES + 1] = lorem_ipsum, count_byte(document, ord("{"))
        row[_SENTENCES] = measure_sentences(document, words, lines, flags)
    if wanted[_GENERATED]:
        row[_GENERATED] = measure_generated(document)
    if wanted[_ALPHANUMERIC]:
        row[_ALPHANUMERIC] = measure_alphanumeric(document)
    if wanted[_LITERALS]:
        row[_LITERALS] = measure_literals(document, words)
    if wanted[_ENCODED]:
        _store(row, _ENCODED, measure_encoded(document))


@compiled
def _store(row: Row, first: np.intp, measures: Sequence[float] | Float64s) -> None:
    for index in range(len(measures)):
        row[first + index] = measures[index]

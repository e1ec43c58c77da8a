"""Disk space that a build needs: upper bounds, computed before text is read."""

from __future__ import annotations

from pipeline.encode.run import DOCUMENT_DTYPE, MEASURES_DTYPE
from pipeline.mix.near_duplicates.bands import BANDS_BYTES
from pipeline.mix.partitions import CHUNK_BYTES
from pipeline.recipe.schema import Recipe
from pipeline.recipe.shares import Demand
from pipeline.sources.base import Unit
from pipeline.sources.selection import FIRST_BYTES_PER_TOKEN as LEAST_BYTES_PER_TOKEN
from shards.format.manifest import dtype_for

COMPRESSED_SHARE = 0.72  # zstd level 3 on uint16 tokens of a 32 K vocabulary: 0.65 to 0.70
ROW_BYTES = 30  # one row of a document table: mostly a hash
FETCH_SCRATCH_SHARE = 0.6
"""Scratch bytes per byte of fetched text: journal and documents, compressed; 0.25 each on Python files, measured."""
REMEDY = "Or lower mix.tokens, use --work on another disk, or delete the work folder's results of earlier recipes."
GUESSED_DOCUMENT_BYTES = 1000  # if no footer states the number of rows


def scratch_bytes(recipe: Recipe, unit: Unit) -> int:
    """Return an upper bound of the bytes that a unit's run takes on disk."""
    # Too much rather than too little: a build that runs out of disk has worked in vain.
    tokens = unit.text_bytes / LEAST_BYTES_PER_TOKEN
    documents = sum(
        span.rows if span.rows is not None else span.text_bytes // GUESSED_DOCUMENT_BYTES + 1 for span in unit.spans
    )
    # Beside its tokens a document has a row, measures and bands, and those of the mix.
    measures = MEASURES_DTYPE.itemsize * len(recipe.sources[unit.source].clean.mix_measures())
    bands = BANDS_BYTES if recipe.clean.near_duplicates is not None else 0
    row_bytes = DOCUMENT_DTYPE.itemsize + measures + bands + CHUNK_BYTES + 1
    return int(tokens * _token_size(recipe) + documents * row_bytes)


def most_output_bytes(recipe: Recipe, text_bytes: list[int]) -> int:
    """Return an upper bound of the set's bytes on disk, from the bytes of text of each source."""
    taken = [size * source.take for size, source in zip(text_bytes, recipe.sources, strict=True)]
    grant = Demand(recipe).grant([size / LEAST_BYTES_PER_TOKEN for size in taken])
    tokens = grant.train_tokens + recipe.split.val_tokens
    documents = tokens * LEAST_BYTES_PER_TOKEN / GUESSED_DOCUMENT_BYTES
    return int(tokens * _token_size(recipe) * COMPRESSED_SHARE + documents * ROW_BYTES)


def _token_size(recipe: Recipe) -> int:
    """Return the bytes of a token on disk before compression."""
    vocab_size = recipe.tokenizer.vocab_size
    return 4 if vocab_size is not None and dtype_for(vocab_size) == "uint32" else 2

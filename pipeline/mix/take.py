"""The share of a source's documents that its `take` keeps: those with the lowest content hashes.

A document is taken if the first 8 bytes of its hash, as a big-endian number, are below take x 2^64. So the documents of
a smaller share are among those of a larger one, and nothing but the text decides. Validation begins at the lowest hash,
and stays as it is.

This is the last step of the mix: whatever is dropped before it is the same for any share. So the documents of a share
are those of the whole source's mix that are taken. If it came first, a share would hold documents that the whole source
loses to near-duplicates, other sources would keep copies of documents that are not taken, and the alarms of cleaning
would see fewer documents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.clean.drops import NOT_TAKEN

if TYPE_CHECKING:
    from pipeline.mix.index import Index
    from pipeline.recipe.schema import SourceRecipe


def describe_take(take: float) -> str:
    """Return the reason under which documents that are not taken count."""
    return f"{NOT_TAKEN}: take = {take}"


def find_end(take: float) -> int:
    """Return the lowest first half of a hash that is not taken, for a share below 1."""
    return math.ceil(take * 2.0**64)  # exact: a power of two changes no digit


def drop_not_taken(index: Index, sources: Sequence[SourceRecipe]) -> None:
    """Drop the documents that are not taken from an index, from which nothing else will be dropped."""
    for number, source in enumerate(sources):
        if source.take < 1:
            index.drop_from(number, find_end(source.take), describe_take(source.take))

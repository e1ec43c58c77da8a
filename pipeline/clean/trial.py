"""The effect of a source's cleaning on one document before encoding: dropped for a reason, masked, or left alone."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.clean.limits import describe_fallen
from pipeline.clean.measures.measure import measure_documents
from pipeline.clean.personal_data import mask_document
from pipeline.clean.steps import LONG, SHORT, clean_batch
from pipeline.clean.tally import Tally
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import TextBatch


@dataclass(frozen=True)
class Trial:
    """The outcome for one document."""

    dropped: str | None
    """The first reason for which it is dropped, as the manifest counts it; None if it stays."""
    details: list[tuple[str, dict[str, Any]]]
    """The findings, as text and as JSON values."""
    text: bytes
    """Its text as it is encoded: masked, if the source masks what it holds."""
    masked: dict[str, int] = field(default_factory=dict[str, int])
    """How often each kind of personal data is masked in it."""


def try_document(source: SourceRecipe, text: bytes) -> Trial:
    """Try a source's cleaning on one document.

    Args:
        source: the source, whose relative paths begin at its `folder`.
        text: the document's bytes, as the source has them.

    Raises:
        InputError: a filter's library or model is not there.
    """
    batch = TextBatch(pa.array([text], pa.large_binary()), np.zeros(1, np.uint32))
    tally = Tally()
    documents = clean_batch(source, batch, tally)
    kinds = dict(sorted(tally.masked.items()))
    if len(documents):
        return Trial(None, [], bytes(next(iter(documents))), kinds)
    (reason,) = tally.dropped
    return Trial(reason, _describe(source, text, reason), text, kinds)


def _describe(source: SourceRecipe, text: bytes, reason: str) -> list[tuple[str, dict[str, Any]]]:
    """Return what was measured of a document that is dropped: every limit that it breaks, or its length."""
    if reason in (SHORT, LONG):
        limit = source.min_bytes if reason == SHORT else source.max_bytes
        return [(f"{reason}: it has {len(text):,} bytes, limit {limit:,}", {"value": len(text), "limit": limit})]
    # Every limit that it breaks, not just the first: moving one may not be enough.
    limits = source.clean.limits("encode")
    if reason not in {limit.reason for limit in limits}:
        return []
    names = sorted({limit.measure for limit in limits})
    document = pa.array([mask_document(source, text).decode()], pa.large_string())
    return describe_fallen(measure_documents(document, names)[0], names, limits)

"""The documents that a model finds hardest, by bits per byte: the quickest way to find broken text."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from shards.format.content_hash import join_hashes
from shards.format.vocabulary import read_vocabulary
from shards.terminal.reporter import Progress
from trainer.evaluation.document_losses import measure_documents
from trainer.evaluation.eval_sets import Documents, Origin
from trainer.evaluation.evaluated_model import EvaluatedModel

EXCERPT_BYTES = 200
"""Bytes of a document's text that are shown, from its beginning."""


class HardDocument(NamedTuple):
    """A document, and how hard a model finds it."""

    group: str
    """The name of its eval set, or `val`."""
    bits_per_byte: float
    text_bytes: int
    origin: Origin
    hash: str
    """Its content hash, in hex."""
    excerpt: str
    """The beginning of its text; bytes that are not UTF-8 are lone surrogates."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of the document."""
        return {
            "set": self.group,
            "bits_per_byte": self.bits_per_byte,
            "bytes": self.text_bytes,
            **self.origin._asdict(),
            "hash": self.hash,
            "excerpt": self.excerpt,
        }


def find_worst_documents(
    evaluated: EvaluatedModel, group: str, documents: Documents, limit: int, progress: Progress
) -> list[HardDocument]:
    """Return the documents with the most bits per byte, the worst first; a loss that is not finite is worst of all.

    Args:
        evaluated: the model, in evaluation mode, without gradients.
        group: the name of the eval set, or `val`.
        documents: the documents.
        limit: how many to return.
        progress: told how many documents are done, and of how many.
    """
    nats = measure_documents(evaluated, documents.tokens, documents.bounds, progress)
    bits = np.full(len(documents), np.inf)
    np.divide(nats / math.log(2), documents.text_bytes, out=bits, where=documents.text_bytes > 0)
    bits[~np.isfinite(bits)] = np.inf
    vocabulary = replace(read_vocabulary(evaluated.tokenizer_json), bos=evaluated.bos_id)
    found: list[HardDocument] = []
    for at in np.argsort(-bits, kind="stable")[:limit].tolist():
        begin, end = documents.bounds[at], documents.bounds[at + 1]
        text = vocabulary.decode_document(documents.tokens[begin : min(end - 1, begin + EXCERPT_BYTES)])
        excerpt = text[:EXCERPT_BYTES].decode("utf-8", "surrogateescape")
        digest = join_hashes(*documents.hashes[at : at + 1].T).tobytes().hex()
        found.append(
            HardDocument(
                group, float(bits[at]), round(float(documents.text_bytes[at])), documents.origins[at], digest, excerpt
            )
        )
    return found

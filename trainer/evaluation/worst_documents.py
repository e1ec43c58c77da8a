"""The documents that a model finds hardest, by bits per byte: the quickest way to find broken text."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from shards.format.content_hash import join_hashes
from shards.format.vocabulary import read_vocabulary
from shards.terminal.reporter import Progress
from trainer.evaluation.document_losses import measure_documents
from trainer.evaluation.eval_sets import Documents
from trainer.evaluation.evaluated_model import EvaluatedModel

EXCERPT_BYTES = 200
"""Bytes of a document's text that are shown, from its beginning."""


def find_worst_documents(
    evaluated: EvaluatedModel, group: str, documents: Documents, limit: int, progress: Progress
) -> list[dict[str, Any]]:
    """Return the documents with the most bits per byte, the worst first; a loss that is not finite is worst of all.

    Args:
        evaluated: the model, in evaluation mode, without gradients.
        group: the name of the eval set, or `val`.
        documents: the documents.
        limit: how many to return.
        progress: told how many documents are done, and of how many.

    Returns:
        For each its `set` (the group), `bits_per_byte`, `bytes` of its text, `source`, `unit` and `row`, `hash` in hex,
        and an `excerpt`, the beginning of its text; bytes that are not UTF-8 are lone surrogates.
    """
    nats = measure_documents(evaluated, documents.tokens, documents.bounds, progress)
    bits = np.full(len(documents), np.inf)
    np.divide(nats / math.log(2), documents.text_bytes, out=bits, where=documents.text_bytes > 0)
    bits[~np.isfinite(bits)] = np.inf
    vocabulary = replace(read_vocabulary(evaluated.tokenizer_json), bos=evaluated.bos_id)
    found: list[dict[str, Any]] = []
    for at in np.argsort(-bits, kind="stable")[:limit].tolist():
        begin, end = documents.bounds[at], documents.bounds[at + 1]
        text = vocabulary.decode_document(documents.tokens[begin : min(end - 1, begin + EXCERPT_BYTES)])
        found.append(
            {
                "set": group,
                "bits_per_byte": float(bits[at]),
                "bytes": round(float(documents.text_bytes[at])),
                **documents.origin(at),
                "hash": join_hashes(*documents.hashes[at : at + 1].T).tobytes().hex(),
                "excerpt": text[:EXCERPT_BYTES].decode("utf-8", "surrogateescape"),
            }
        )
    return found

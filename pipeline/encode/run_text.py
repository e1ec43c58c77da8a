"""The text of a run's document, from its tokens: the whole, or its beginning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.encode.run import Run
from shards.format.vocabulary import Vocabulary

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def read_run_start(run: Run, index: int, vocabulary: Vocabulary, *, characters: int) -> str:
    """Return the beginning of a document's text, from the tokens of its run.

    Raises:
        WorkFileDamagedError: the run's files are not as they were written.
    """
    row = run.read_documents(index, index + 1).copy()
    # Without EOS; a token is a byte at least, and one may be BOS.
    row["length"] = min(int(row["length"][0]) - 1, 4 * characters + 1)
    return _decode(run.read_tokens(row), vocabulary).decode("utf-8", "replace")[:characters]


def read_run_text(run: Run, index: int, vocabulary: Vocabulary) -> bytes:
    """Return a document's whole text, from the tokens of its run.

    Raises:
        WorkFileDamagedError: the run's files are not as they were written.
    """
    tokens = run.read_tokens(run.read_documents(index, index + 1))
    return _decode(tokens[:-1], vocabulary)  # without EOS


def _decode(tokens: npt.NDArray[np.unsignedinteger], vocabulary: Vocabulary) -> bytes:
    """Return the text of a run's document; no special token is in it, so that one at its beginning is BOS."""
    first = int(tokens[0]) if len(tokens) else None
    is_bos = first in vocabulary.special.values() and first != vocabulary.unknown
    return replace(vocabulary, bos=first if is_bos else None).decode_document(tokens)

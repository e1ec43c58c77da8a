"""Find the documents of a token stream: where they end, their content hashes, and which of them repeat another.

Documents are cut at EOS. If EOS begins each document (as llm.c's scripts write it), it moves to the document's end: the
same documents and the same number of tokens. Memory: about 60 bytes per document.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from shards.convert.import_.bin_files import BinStream
from shards.errors import InputError, plural
from shards.format.arrays import Bools, Int64s, Rows, UInt8s
from shards.format.content_hash import hash_document, split_hashes
from shards.format.document_blocks import cut_blocks
from shards.format.equal_hashes import find_copies, sort_hashes
from shards.format.vocabulary import Vocabulary
from shards.terminal.reporter import Advance

SOURCE = "imported"
"""The name of the source of all imported documents."""

EosAt = Literal["end", "start"]
MAX_DOCUMENT_TOKENS = (1 << 32) - 1
HASHED_TOKENS = 1 << 18
"""Tokens decoded at a time: their references and texts stay near the processor."""


@dataclass
class ImportedDocuments:
    """A stream's documents, each ending with EOS.

    Attributes:
        stream: the tokens.
        ends: one past each document's last token, its EOS; int64 `(documents,)`, ascending.
        eos_at: where EOS was in the files.
        closed: whether EOS was put after the last document, which had none.
        hashes: the documents' content hashes, once they are known: uint8 `(documents, 16)`.
        keep: whether each is in the set, once that is known: bool `(documents,)`.
    """

    stream: BinStream
    ends: Int64s
    eos_at: EosAt
    closed: bool
    hashes: UInt8s = field(init=False)
    keep: Bools = field(init=False)

    @property
    def lengths(self) -> Int64s:
        """Tokens of each document, EOS included: int64 `(documents,)`."""
        return np.diff(self.ends, prepend=0)


def cut_documents(
    stream: BinStream, *, vocab_size: int, eos_id: int, close: bool, advance: Advance
) -> ImportedDocuments:
    """Read an imported stream once, check its ids, and cut it into documents.

    Args:
        stream: the tokens.
        vocab_size: every id must be below it.
        eos_id: the id between documents.
        close: add EOS to a last document that has none; a stream without any EOS is then one document.
        advance: called with the number of tokens read since the last call.

    Raises:
        InputError: an id is out of range, the last document does not end and `close` is not set, or a document is
            longer than a set allows.
    """
    names = ", ".join(bin_file.path.name for bin_file in stream.bins)
    found: list[Int64s] = []
    position = 0
    for tokens in stream.iter_blocks():
        # An id that the tokenizer lacks: another tokenizer, or another dtype.
        if int(tokens.max()) >= vocab_size:
            at = int((tokens >= vocab_size).argmax())
            raise InputError(
                f"{names}: token {position + at} is {tokens[at]}; expected less than the tokenizer's {vocab_size}. "
                "Give the tokenizer that the file was made with, or the right --dtype."
            )
        found.append(np.flatnonzero(tokens == eos_id).astype(np.int64) + position)
        position += len(tokens)
        advance(len(tokens))
    # EOS at the very end: it ends documents. At the very beginning alone: it begins them.
    where = np.concatenate(found)
    if len(where) and where[-1] == position - 1:
        documents = ImportedDocuments(stream, where + 1, "end", closed=False)
    elif len(where) and where[0] == 0:
        # EOS first and not last: it begins documents. Left out at the very beginning, put at the very end.
        ends = np.append(where[1:], position)
        documents = ImportedDocuments(replace(stream, skip=1, appended=(eos_id,)), ends, "start", closed=False)
    elif close:
        ends = np.append(where + 1, position + 1)
        documents = ImportedDocuments(replace(stream, appended=(eos_id,)), ends, "end", closed=True)
    else:
        what = f"the last EOS is token {where[-1]} of {position}" if len(where) else "there is no EOS"
        raise InputError(
            f"{names}: {what} ({eos_id}); the last document does not end. Give the right --eos, or --close to end it."
        )
    if int(documents.lengths.max()) > MAX_DOCUMENT_TOKENS:
        raise InputError(
            f"{names}: a document of {plural(documents.lengths.max(), 'token')}; a set holds fewer than 2^32"
        )
    return documents


def hash_documents(documents: ImportedDocuments, vocabulary: Vocabulary, advance: Advance) -> None:
    """Take each imported document's content hash, of the text its tokens stand for.

    Raises:
        InputError: the vocabulary has a BOS, and a document does not begin with it or has another one.
    """
    digests: list[bytes] = []
    # An array of objects, indexed: no number is made for each id. 43 million tokens per second, against 15 by map.
    texts = np.empty(len(vocabulary), object)
    texts[:] = vocabulary.entries
    begins = vocabulary.bos is not None or bool(vocabulary.prefix)
    for first, last in cut_blocks(documents.ends, HASHED_TOKENS):
        start = int(documents.ends[first - 1]) if first else 0
        ids = documents.stream.read(start, int(documents.ends[last - 1]))
        parts = texts[ids].tolist()
        position = 0
        for stop in (documents.ends[first:last] - start).tolist():
            # The text begins behind BOS, and behind the space that some tokenizers put first.
            begin, skipped = vocabulary.split_document(ids[position : stop - 1]) if begins else (0, 0)
            if vocabulary.bos is not None and (not begin or vocabulary.bos in ids[position + 1 : stop]):
                raise InputError(
                    f"the document at token {start + position} does not begin with BOS {vocabulary.bos}, or has "
                    "another one in it. Give the right --bos, or none."
                )
            digests.append(hash_document(b"".join(parts[position + begin : stop - 1])[skipped:]))
            position = stop
        advance(len(parts))
    documents.hashes = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)


@dataclass(frozen=True)
class Repeats:
    """Which documents repeat an earlier one. Validation comes before training.

    Attributes:
        original: for each document, whether it is the first of its hash; bool `(val + train,)`.
        again: whether it is a training document that repeats a training document but no validation document; the same
            shape.
        in_val: validation documents that repeat a validation document.
        leaked: training documents that are also in validation.
        epochs: how often the most frequent training document occurs.
    """

    original: Bools
    again: Bools
    in_val: int
    leaked: int
    epochs: int

    @property
    def in_train(self) -> int:
        """Training documents that repeat one of training and none of validation."""
        return int(self.again.sum())


def find_repeats(hashes: Rows, num_val: int) -> Repeats:
    """Find the imported documents of equal hash.

    Args:
        hashes: uint8 `(val + train, 16)`, validation first.
        num_val: documents of validation.
    """
    # Each document, and the first one with its hash; validation comes first.
    hi, lo = split_hashes(np.ascontiguousarray(hashes)).T
    order, _ = sort_hashes(hi, lo)
    copies, originals = find_copies(hi, lo, order)
    firsts = np.arange(len(hashes))
    firsts[copies] = originals
    original = firsts == np.arange(len(hashes))
    leaked = firsts[num_val:] < num_val
    again = ~original & (firsts >= num_val)
    in_val = num_val - int(original[:num_val].sum())
    return Repeats(original, again, in_val, int(leaked.sum()), int(np.bincount(firsts[num_val:]).max()))

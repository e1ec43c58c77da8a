"""The vocabulary: the bytes of each token id, read from `tokenizer.json` alone.

`tokenizers.decode` replaces bytes that are not valid UTF-8 on their own. Joining the bytes of each token loses nothing,
so `Vocabulary.decode` is exact for any range of tokens: the text as the tokenizer keeps it (`Keeps`). Kinds whose
tokens do not have fixed bytes, such as WordPiece, are refused.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from shards.errors import Problem
from shards.format.arrays import Bools, Int64s, Tokens
from shards.format.manifest import Manifest
from shards.format.tokenizer_json import Keeps, parse_tokenizer

MAX_TOKENIZER_BYTES = 1 << 27
"""A larger tokenizer.json is refused before it is read; 262,144 entries take 33 MB."""

MAX_VOCAB_SIZE = 1 << 24
"""Ids of this size and above are refused, so that one absurd id cannot allocate a table of that size."""


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a tokenizer.

    Attributes:
        entries: the bytes of each id, in id order; empty for an id that the tokenizer does not use. The bytes of a
            special or other added token are its text in UTF-8.
        special: the special tokens, text to id. They mark documents and are not part of the text.
        prefix: the text that the tokenizer may have put before a document.
        unknown: the id of all that the vocabulary does not have; None if it has everything. It stands for no text.
        keeps: what the tokens of a document keep of it.
        bos: the id that begins each document of a set; None if none does.
    """

    entries: Sequence[bytes]
    special: dict[str, int]
    prefix: bytes = b""
    unknown: int | None = None
    keeps: Keeps = "bytes"
    bos: int | None = None

    def __len__(self) -> int:
        return len(self.entries)

    def decode(self, tokens: Tokens | Sequence[int]) -> bytes:
        """Return the bytes of tokens, joined.

        Raises:
            IndexError: an id is outside the vocabulary.
        """
        ids = tokens if isinstance(tokens, Sequence) else cast("list[int]", tokens.tolist())
        return b"".join([self.entries[token] for token in ids])

    def spell(self, token: int) -> str:
        """Return the text of a token; bytes that are not UTF-8 on their own are spelt out: `\xe2`."""
        return self.entries[token].decode("utf-8", "backslashreplace")

    def split_document(self, tokens: Tokens) -> tuple[int, int]:
        """Return where a document's text begins: how many tokens (BOS), and bytes, are before."""
        # BOS is a token of its own; the prefix is a part of the first token's bytes.
        begin = int(self.bos is not None and len(tokens) > 0 and int(tokens[0]) == self.bos)
        if self.prefix and len(tokens) > begin and self.entries[int(tokens[begin])].startswith(self.prefix):
            return begin, len(self.prefix)
        return begin, 0

    def decode_document(self, tokens: Tokens) -> bytes:
        """Return the text of a document, or its beginning, without BOS and prefix.

        Args:
            tokens: from the document's first token on; its EOS is not among them.

        Raises:
            IndexError: an id is outside the vocabulary.
        """
        begin, skipped = self.split_document(tokens)
        return self.decode(tokens[begin:])[skipped:]

    def entry_lengths(self) -> Int64s:
        """Return the bytes of each entry, int64 `(vocab_size,)`."""
        return np.array([len(entry) for entry in self.entries], np.int64)

    def text_lengths(self) -> Int64s:
        """Return the bytes of text of each id, int64 `(vocab_size,)`; 0 if special or unknown."""
        # Special tokens are marks; the unknown token stands for text that is lost.
        lengths = self.entry_lengths()
        lengths[self.special_mask()] = 0
        if self.unknown is not None:
            lengths[self.unknown] = 0
        return lengths

    def special_mask(self) -> Bools:
        """Return which ids are special, bool `(vocab_size,)`."""
        mask = np.zeros(len(self), np.bool_)
        mask[list(self.special.values())] = True
        return mask


def read_vocabulary(tokenizer_json: bytes) -> Vocabulary:
    """Read the vocabulary of a tokenizer.json.

    Raises:
        ValueError: the file is not a tokenizer file, or its entries have no fixed bytes.
    """
    parsed = parse_tokenizer(tokenizer_json)
    size = parsed.size
    if size > MAX_VOCAB_SIZE:
        raise ValueError(f"tokenizer: ids reach {size - 1}; expected less than {MAX_VOCAB_SIZE}")
    # Ids that no entry has stay empty.
    entries = [b""] * size
    for text, token in parsed.vocabulary.items():
        if text not in parsed.added:
            entries[token] = parsed.spelling.decode_entry(text)
    # Added tokens are plain text, whatever the model's spelling.
    for text, token in parsed.added.items():
        entries[token] = text.encode()
    spelling = parsed.spelling
    return Vocabulary(entries, parsed.special, spelling.prefix, spelling.unknown, spelling.keeps)


def check_tokenizer(data: bytes, manifest: Manifest) -> list[Problem]:
    """Check that a tokenizer file has the vocabulary that the manifest says: digest, size, EOS and special tokens."""
    entry = manifest.tokenizer
    problems: list[Problem] = []

    def add(message: str) -> None:
        problems.append(Problem("tokenizer_mismatch", entry.file, message))

    # Another file may still have the same vocabulary: both are told.
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry.sha256:
        add(f"sha256 is {digest}; expected {entry.sha256} by the manifest. Restore the file the set was built with.")
    try:
        parsed = parse_tokenizer(data)
    except ValueError as error:
        add(f"{error}. Restore the file the set was built with.")
        return problems
    if (size := parsed.size) != manifest.vocab_size:
        add(f"its ids reach {size - 1}, a vocabulary of {size}; the manifest's vocab_size is {manifest.vocab_size}")
    if entry.eos_id not in entry.special_tokens.values():
        add(f"eos_id {entry.eos_id} is not one of the manifest's special tokens {entry.special_tokens!s:.200}")
    if entry.bos_id is not None and (entry.bos_id not in entry.special_tokens.values() or entry.bos_id == entry.eos_id):
        add(f"bos_id {entry.bos_id} is not one of the manifest's special tokens other than EOS")
    # A special token that is missing would be split into text.
    for text, token in entry.special_tokens.items():
        if parsed.added.get(text) != token:
            have = f"has the id {parsed.added[text]}" if text in parsed.added else "is not among its added tokens"
            add(f"special token {text!r} {have}; expected the id {token} by the manifest")
    return problems

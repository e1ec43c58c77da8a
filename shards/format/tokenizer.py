"""The vocabulary of a byte-level BPE: the bytes of each token id, read from `tokenizer.json` alone.

`tokenizers.decode` replaces bytes that are not valid UTF-8 on their own. Joining the bytes of each token loses nothing,
so `Vocabulary.decode` is exact for any range of tokens. Other kinds of vocabulary are refused: their tokens do
not have fixed bytes.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shards.errors import Problem
from shards.format.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_TOKENIZER_BYTES = 1 << 27
"""A larger tokenizer.json is refused before it is read; 262,144 entries take 33 MB."""

MAX_VOCAB_SIZE = 1 << 24
"""Ids of this size and above are refused, so that one absurd id cannot allocate a table of that size."""


@functools.cache
def byte_characters() -> tuple[str, ...]:
    """Return the character that represents each byte in a byte-level vocabulary, by byte value.

    Source: `bytes_to_unicode` in the GPT-2 release: printable Latin-1 represents itself, the rest is U+0100 and up.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


@dataclass(frozen=True)
class TokenizerFile:
    """The entries of a tokenizer.json as they are written, text to id.

    Attributes:
        vocabulary: the entries of the model. A byte-level one spells them in the characters of `byte_characters`.
        added: the added tokens, in plain text.
        special: the added tokens that are marked as special.
    """

    vocabulary: dict[str, int]
    added: dict[str, int]
    special: dict[str, int]

    @property
    def size(self) -> int:
        """The size of the whole vocabulary: one more than the largest id."""
        return max([*self.vocabulary.values(), *self.added.values()], default=-1) + 1


@dataclass(frozen=True)
class Vocabulary:
    """The entries of a byte-level BPE.

    Attributes:
        entries: the bytes of each id, in id order; empty for an id that the tokenizer does not use. The bytes of a
            special or other added token are its text in UTF-8.
        special: the special tokens, text to id. They mark documents and are not part of the text.
    """

    entries: Sequence[bytes]
    special: dict[str, int]

    def __len__(self) -> int:
        return len(self.entries)

    def decode(self, tokens: npt.NDArray[np.unsignedinteger] | Sequence[int]) -> bytes:
        """Return the bytes of tokens, joined.

        Raises:
            IndexError: an id is outside the vocabulary.
        """
        ids = tokens if isinstance(tokens, Sequence) else cast("list[int]", tokens.tolist())
        return b"".join([self.entries[token] for token in ids])

    def entry_lengths(self) -> npt.NDArray[np.int64]:
        """Return the number of bytes of each entry, int64 `(vocab_size,)`."""
        import numpy as np

        return np.array([len(entry) for entry in self.entries], np.int64)

    def text_lengths(self) -> npt.NDArray[np.int64]:
        """Return the bytes of text that each id decodes to, int64 `(vocab_size,)`; 0 for a special token."""
        lengths = self.entry_lengths()
        lengths[list(self.special.values())] = 0
        return lengths

    def special_mask(self) -> npt.NDArray[np.bool_]:
        """Return which ids are special, bool `(vocab_size,)`."""
        import numpy as np

        mask = np.zeros(len(self), np.bool_)
        mask[list(self.special.values())] = True
        return mask


def read_vocabulary(tokenizer_json: Path | bytes) -> Vocabulary:
    """Read the vocabulary of a tokenizer.json.

    Raises:
        ValueError: the file is not a tokenizer file, or its vocabulary is not byte-level.
        OSError: the file cannot be read.
    """
    data = tokenizer_json.read_bytes() if isinstance(tokenizer_json, Path) else tokenizer_json
    parsed = parse_tokenizer(data)
    size = parsed.size
    if size > MAX_VOCAB_SIZE:
        raise ValueError(f"tokenizer: ids reach {size - 1}; expected less than {MAX_VOCAB_SIZE}")
    alphabet = {character: byte for byte, character in enumerate(byte_characters())}
    entries = [b""] * size
    for text, token in parsed.vocabulary.items():
        if text in parsed.added:
            continue
        try:
            entries[token] = bytes(alphabet[character] for character in text)
        except KeyError as error:
            raise ValueError(
                f"tokenizer: entry {text!r} holds {error.args[0]!r}; expected characters of the byte-level alphabet. "
                "Use a byte-level BPE."
            ) from error
    for text, token in parsed.added.items():
        entries[token] = text.encode()
    return Vocabulary(entries, parsed.special)


def find_special(tokenizer: dict[str, Any]) -> dict[str, int]:
    """Return the special tokens of a parsed tokenizer.json, text to id."""
    added: list[dict[str, Any]] = tokenizer.get("added_tokens") or []
    return {entry["content"]: entry["id"] for entry in added if entry.get("special")}


def parse_tokenizer(data: bytes) -> TokenizerFile:
    """Parse a tokenizer.json.

    Raises:
        ValueError: the data is not JSON or does not describe a BPE, or an entry has no text or no id >= 0.
    """
    try:
        root: Any = json.loads(data)
        vocabulary: Any = root["model"]["vocab"]
        entries: list[Any] = root.get("added_tokens") or []
        added: Any = {entry["content"]: entry["id"] for entry in entries}
        special = find_special(root)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a tokenizer file: {type(error).__name__}: {error}") from error
    kind = root["model"].get("type", "BPE")  # files of the first versions have no type
    if kind != "BPE" or not isinstance(vocabulary, dict):
        found = f"model.type {kind!r} with a vocab that is a {type(vocabulary).__name__}"
        raise ValueError(f"{found}; expected a byte-level 'BPE' with an object of texts and ids")
    for mapping in cast("tuple[dict[Any, Any], ...]", (vocabulary, added)):
        for text, token in mapping.items():
            if not isinstance(text, str) or type(token) is not int or token < 0:
                raise ValueError(f"entry {text!r} has the id {token!r}; expected a whole number >= 0")
    return TokenizerFile(cast("dict[str, int]", vocabulary), cast("dict[str, int]", added), special)


def check_tokenizer(data: bytes, manifest: Manifest) -> list[Problem]:
    """Check a tokenizer file against the manifest: its digest, vocabulary size, EOS and special tokens."""
    entry = manifest.tokenizer
    problems: list[Problem] = []

    def add(message: str) -> None:
        problems.append(Problem("tokenizer_mismatch", entry.file, message))

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
    for text, token in entry.special_tokens.items():
        if parsed.added.get(text) != token:
            have = f"has the id {parsed.added[text]}" if text in parsed.added else "is not among its added tokens"
            add(f"special token {text!r} {have}; expected the id {token} by the manifest")
    return problems

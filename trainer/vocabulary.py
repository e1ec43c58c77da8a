"""What the trainer needs to know of a tokenizer: the bytes that each id stands for, and its file's digest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import tokenizers


def hash_file(path: Path) -> str:
    """Return the hex SHA-256 of a small file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def count_token_bytes(tokenizer: tokenizers.Tokenizer, vocab_size: int) -> npt.NDArray[np.int64] | None:
    """Return how many bytes of text each id decodes to, int64 `(vocab_size,)`; special tokens have none.

    Byte-level vocabularies only: they write each byte as one character, so that a token of a few bytes in the middle
    of a UTF-8 sequence has a length too. None for other tokenizers, where a token alone has no certain length.
    """
    decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
    parts = decoder.get("decoders", [decoder])
    if [part.get("type") for part in parts] != ["ByteLevel"]:
        return None
    lengths = np.zeros(vocab_size, dtype=np.int64)
    added = tokenizer.get_added_tokens_decoder()
    for token, index in tokenizer.get_vocab(with_added_tokens=True).items():
        if index < vocab_size:
            special = index in added and added[index].special
            plain = index in added and not special
            lengths[index] = 0 if special else len(token.encode()) if plain else len(token)
    return lengths

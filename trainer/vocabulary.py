"""What the trainer needs to know of a tokenizer: how many bytes of text each id stands for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import tokenizers


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

"""Token ids as bytes: what each id of a byte-level BPE stands for, read from `tokenizer.json` alone.

`tokenizers.decode` replaces bytes that are not valid UTF-8 on their own; joining the bytes of each token loses nothing,
so `decode(ids, token_bytes(...))` is exact for any range of tokens. Only byte-level vocabularies are understood.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from shards.errors import Problem
from shards.format.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from shards.format.reader import ShardSet

MAX_TOKENIZER_BYTES = 1 << 27
"""A larger tokenizer.json is refused before it is read; 262,144 entries take 33 MB."""

MAX_VOCAB_SIZE = 1 << 24
"""Ids from here on are refused when bytes are tabled, so that one absurd id cannot allocate."""


def byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for.

    Source: GPT-2's `bytes_to_unicode`: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def token_bytes(tokenizer_json: Path | bytes) -> list[bytes]:
    """Return the bytes that each id stands for, in id order; ids that the vocabulary leaves out are empty.

    A special or other added token stands for its content's UTF-8.

    Raises:
        ValueError: not a tokenizer file, or not a byte-level vocabulary.
        OSError: the file cannot be read.
    """
    data = tokenizer_json.read_bytes() if isinstance(tokenizer_json, Path) else tokenizer_json
    vocabulary, added = parse_tokenizer(data)
    size = max([*vocabulary.values(), *added.values()], default=-1) + 1
    if size > MAX_VOCAB_SIZE:
        raise ValueError(f"tokenizer: ids reach {size - 1}; expected less than {MAX_VOCAB_SIZE}")
    alphabet = byte_alphabet()
    table = [b""] * size
    for text, token in vocabulary.items():
        if text in added:
            continue
        try:
            table[token] = bytes(alphabet[character] for character in text)
        except KeyError as error:
            raise ValueError(
                f"tokenizer: entry {text!r} holds {error.args[0]!r}; expected characters of the byte-level alphabet. "
                "Use a byte-level BPE."
            ) from error
    for text, token in added.items():
        table[token] = text.encode()
    return table


def count_text_bytes(shard_set: ShardSet) -> npt.NDArray[np.int64] | None:
    """Return how many bytes of text each id of a set stands for, int64 `(vocab_size,)`; a special token has none.

    None where the tokenizer is not byte-level: a token alone has no certain length there.
    """
    import numpy as np

    tokenizer = shard_set.manifest.tokenizer
    try:
        table = token_bytes(shard_set.path / tokenizer.file)
    except ValueError:
        return None
    lengths = np.array([len(content) for content in table], dtype=np.int64)
    lengths[list(tokenizer.special_tokens.values())] = 0
    return lengths


def decode(tokens: Iterable[int], table: list[bytes]) -> bytes:
    """Join the bytes of tokens.

    Raises:
        IndexError: an id is outside the table.
    """
    return b"".join([table[token] for token in tokens])


def parse_tokenizer(data: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """Return the model's vocabulary and the added tokens of a tokenizer.json, each text to id.

    Raises:
        ValueError: not JSON, no BPE, or without a vocabulary of unique texts with ids >= 0.
    """
    try:
        root: Any = json.loads(data)
        vocabulary: Any = root["model"]["vocab"]
        entries: list[Any] = root.get("added_tokens") or []
        added: Any = {entry["content"]: entry["id"] for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a tokenizer file: {type(error).__name__}: {error}") from error
    kind = root["model"].get("type", "BPE")  # files of the first versions do not say it
    if kind != "BPE" or not isinstance(vocabulary, dict):
        what = f"model.type {kind!r} with a vocab that is a {type(vocabulary).__name__}"
        raise ValueError(f"{what}; expected a byte-level 'BPE' with an object of texts and ids")
    for mapping in cast("tuple[dict[Any, Any], ...]", (vocabulary, added)):
        for text, token in mapping.items():
            if not isinstance(text, str) or type(token) is not int or token < 0:
                raise ValueError(f"entry {text!r} has the id {token!r}; expected a whole number >= 0")
    return cast("dict[str, int]", vocabulary), cast("dict[str, int]", added)


def check_tokenizer(data: bytes, manifest: Manifest) -> list[Problem]:
    """Check a tokenizer file against what the manifest says of it: digest, vocabulary size, EOS, special tokens."""
    entry = manifest.tokenizer
    problems: list[Problem] = []

    def add(message: str) -> None:
        problems.append(Problem("tokenizer_mismatch", entry.file, message))

    digest = hashlib.sha256(data).hexdigest()
    if digest != entry.sha256:
        add(f"sha256 is {digest}; expected {entry.sha256} by the manifest. Restore the file the set was built with.")
    try:
        vocabulary, added = parse_tokenizer(data)
    except ValueError as error:
        add(f"{error}. Restore the file the set was built with.")
        return problems
    ids = {*vocabulary.values(), *added.values()}
    size = max(ids, default=-1) + 1
    if size != manifest.vocab_size:
        add(f"its ids reach {size - 1}, a vocabulary of {size}; the manifest's vocab_size is {manifest.vocab_size}")
    if entry.eos_id not in entry.special_tokens.values():
        add(f"eos_id {entry.eos_id} is none of the manifest's special tokens {entry.special_tokens!s:.200}")
    for text, token in entry.special_tokens.items():
        if added.get(text) != token:
            have = f"has the id {added[text]}" if text in added else "is not among its added tokens"
            add(f"special token {text!r} {have}; expected the id {token} by the manifest")
    return problems

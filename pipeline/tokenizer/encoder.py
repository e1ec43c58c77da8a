"""The encoder: read a `tokenizer.json`, and encode text with it.

Text is data: the encoder loads the tokenizer without added tokens, so that the characters of a special token in a
document are encoded as characters.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine.receipts import TaskOutput
from pipeline.tokenizer.checks import TokenizerError, find_faults
from shards.format.tokenizer import find_special
from shards.stores.open import open_store

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_PROBE = "Probe: it's 12345 caf\u00e9s, \u4e2d\u6587!\r\n\n\tHTTPServer  x\u00a0 \U0001f642 \x00 DON'T   "
"""Words, digits, contractions, spaces and line ends of the kinds that pre-tokenizers split differently."""


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """A `tokenizer.json`, and the values that the build needs from it."""

    path: str
    text: str = field(repr=False)
    sha256: str
    vocab_size: int
    eos_id: int
    special_tokens: dict[str, int]
    task: str | None = None
    """The address of the folder of the task that trained it; None if the recipe names the file."""


def load_tokenizer(
    path: Path | str, *, eos_token: str, content: bytes | None = None, task: str | None = None
) -> TokenizerInfo:
    """Read a `tokenizer.json`, and check it as far as possible without loading the encoder.

    Args:
        path: the file.
        eos_token: the special token that ends documents.
        content: the file's bytes, if they have been read and checked; None to read the file.
        task: the address of the folder of the task that trained it.

    Raises:
        TokenizerError: it is not a byte-level BPE, rewrites text, or lacks the EOS token.
    """
    content = Path(path).read_bytes() if content is None else content
    try:
        data: dict[str, Any] = json.loads(content)
        text = content.decode()
        added: list[dict[str, Any]] = data.get("added_tokens") or []
        vocab_size: int = 1 + max([*data["model"]["vocab"].values(), *(token["id"] for token in added)])
        special = find_special(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TokenizerError(f"{path}: not a tokenizer.json with a vocabulary: {error!r}") from error
    faults = list(find_faults(data))
    if eos_token not in special:
        faults.append(f"no special token {eos_token!r} to end documents; there are {sorted(special)}.")
    if faults:
        raise TokenizerError("\n".join(f"{path}: {fault}" for fault in faults))
    digest = hashlib.sha256(content).hexdigest()
    return TokenizerInfo(str(path), text, digest, vocab_size, special[eos_token], special, task)


def plain_json(data: dict[str, Any]) -> str:
    """Return a `tokenizer.json` without added tokens, which would match inside documents, truncation and padding."""
    return json.dumps(data | {"added_tokens": [], "truncation": None, "padding": None, "post_processor": None})


class Encoder:
    """Encodes batches of text, and single documents by the reference implementation.

    Not thread-safe: each worker process has one. Results depend on the tokenizer alone.
    """

    def __init__(self, text: str, special_tokens: dict[str, int]):
        """Load the encoders.

        Args:
            text: a tokenizer.json made plain by `plain_json`.
            special_tokens: the ids that no document may yield.

        Raises:
            TokenizerError: an encoder cannot run it, or they differ.
        """
        import gigatoken
        import tokenizers

        try:
            self._fast = gigatoken.Tokenizer.from_json(text)
        except (ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise TokenizerError(
                f"gigatoken cannot run this tokenizer: {reason}. Use a gpt2, llama3, qwen2 or o200k pre-tokenizer."
            ) from error
        try:
            self._reference = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # tokenizers raises a bare Exception
            raise TokenizerError(f"tokenizers cannot read this tokenizer: {error}. Restore the file.") from error
        if faults := list(_find_differences(self, special_tokens)):
            raise TokenizerError("tokenizer: " + "\n".join(faults))

    def encode(self, text: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Encode documents; no EOS is added.

        Returns:
            ids: uint32 `(num_tokens,)`; and offsets: int64 `(num_documents + 1,)` into them.
        """
        import awkward as ak
        import numpy as np

        layout: Any = self._fast.encode_batch(ak.from_arrow(text), parallel=False).layout
        offsets = np.asarray(layout.offsets)
        return np.asarray(layout.content.data), offsets

    def encode_reference(self, text: str) -> list[int]:
        """Encode one document with `tokenizers`, special tokens taken as text."""
        return self._reference.encode(text, add_special_tokens=False).ids


@functools.lru_cache(maxsize=2)
def load_encoder(
    path: str, sha256: str, special_tokens: tuple[tuple[str, int], ...], task: str | None = None
) -> Encoder:
    """Return the encoder of a `tokenizer.json`; it is made once per process.

    Args:
        path: the file.
        sha256: the SHA-256 that it must have.
        special_tokens: the ids that no document may yield.
        task: the address of the folder of the task that trained it; None if the recipe names the file.

    Raises:
        TokenizerError: an encoder cannot run it, they differ, or the file has changed.
        WorkFileDamagedError: it is a task's output and has changed.
    """
    name = Path(path).name
    text = Path(path).read_bytes() if task is None else bytes(TaskOutput(open_store(task)).read(name))
    if hashlib.sha256(text).hexdigest() != sha256:
        raise TokenizerError(f"{path}: changed while the build ran. Restore it, or run the same command again.")
    return Encoder(plain_json(json.loads(text)), dict(special_tokens))


def _find_differences(encoder: Encoder, special: dict[str, int]) -> Iterator[str]:
    """Yield the faults that encoding a short text shows: text yields a special token, or the encoders differ."""
    import pyarrow as pa

    from pipeline.arrow import wrap_texts

    for token, token_id in special.items():
        if token_id in encoder.encode_reference(token):
            yield f"special token {token!r} is an ordinary word of the vocabulary: text yields its id. Rename it."
    ids, _ = encoder.encode(wrap_texts(pa.large_string(), [_PROBE.encode()]))
    if ids.tolist() != (expected := encoder.encode_reference(_PROBE)):
        yield (
            f"gigatoken and tokenizers encode {_PROBE!r} differently, as {ids.tolist()} and {expected}. "
            "Use a gpt2, llama3, qwen2 or o200k pre-tokenizer."
        )

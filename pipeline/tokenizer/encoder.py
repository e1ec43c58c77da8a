"""The tokenizer: a byte-level BPE trained on a sample or taken from a file, and the encoder made from it.

Training learns merges with gigatoken for the GPT-2 pre-tokenizer (4 to 9 times faster than `tokenizers`, merges
identical) and with `tokenizers` for the others. The result is a `tokenizer.json` laid out as `tokenizers` would write
it: special tokens first, then the 256 bytes, then the merges. Text is data: the encoder is given a tokenizer without
added tokens, so that a special token's characters in a document are encoded as characters.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.tokenizer.checks import find_differences, find_faults
from shards.errors import InputError
from shards.format.tokenizer import byte_characters, find_special

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    import tokenizers

DOCUMENT_SEPARATOR = b"\xff"
"""Stands between documents in a sample file: no byte of UTF-8 text has this value."""

# The split patterns of the published tokenizers, as their tokenizer.json files and tiktoken state them.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_UNCASED = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS = {
    "llama3": _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": "|".join(
        [
            rf"[^\r\n\p{{L}}\p{{N}}]?{_CASED}*{_UNCASED}+{_CONTRACTIONS}?",
            rf"[^\r\n\p{{L}}\p{{N}}]?{_CASED}+{_UNCASED}*{_CONTRACTIONS}?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    ),
}


class TokenizerError(InputError):
    """A tokenizer that cannot be trained or used."""


def pre_tokenizer(name: str) -> tokenizers.pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer that a recipe names."""
    from tokenizers import Regex, pre_tokenizers

    if name == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Split(Regex(PATTERNS[name]), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train_merges(
    sample_path: Path, vocab_size: int, special_tokens: list[str], pretokenizer: str
) -> list[tuple[str, str]]:
    """Learn BPE merges from a sample file of documents with `DOCUMENT_SEPARATOR` between them.

    Args:
        sample_path: the sample.
        vocab_size: entries wanted, special tokens and the 256 bytes included.
        special_tokens: they take entries, and are never matched in the sample.
        pretokenizer: a name that recipes use.

    Returns:
        The merges in order, in byte-level characters: fewer than wanted when the sample offers no more pairs.
    """
    if pretokenizer == "gpt2":
        import gigatoken

        source = gigatoken.TextFileSource([sample_path], separator=DOCUMENT_SEPARATOR)
        with _native_training():
            _, pairs = gigatoken.train_bpe(source, vocab_size - len(special_tokens), [])
        table = byte_characters()
        merges = [("".join(table[b] for b in left), "".join(table[b] for b in right)) for left, right in pairs]
        # A sample that has no pairs left makes gigatoken go on with pairs that do not occur.
        if not _is_exhausted(sample_path, merges):
            return merges
    return train_merges_slowly(sample_path, vocab_size, special_tokens, pretokenizer)


def train_merges_slowly(
    sample_path: Path, vocab_size: int, special_tokens: list[str], pretokenizer: str
) -> list[tuple[str, str]]:
    """Learn the same merges with `tokenizers` alone: faster only for a sample of a few megabytes."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(pretokenizer)  # type: ignore[assignment]
    with _native_training():
        tokenizer.train_from_iterator(iter_sample(sample_path), trainer)
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def _is_exhausted(sample_path: Path, merges: list[tuple[str, str]]) -> bool:
    """Say whether every word of a sample is one entry; the first one that is not ends the search."""
    split = pre_tokenizer("gpt2").pre_tokenize_str
    entries = {*byte_characters(), *(left + right for left, right in merges)}
    return all(word in entries for document in iter_sample(sample_path) for word, _ in split(document))


def iter_sample(path: Path) -> Iterator[str]:
    """Yield the documents of a sample file."""
    pending = b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            *documents, pending = (pending + block).split(DOCUMENT_SEPARATOR)
            yield from (document.decode() for document in documents)
    if pending:
        yield pending.decode()


def build_tokenizer_json(merges: list[tuple[str, str]], special_tokens: list[str], pretokenizer: str) -> str:
    """Return the text of the `tokenizer.json` that these merges make.

    Raises:
        TokenizerError: a special token is also an ordinary entry, so that text could produce its id.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models

    ordinary = dict.fromkeys([*sorted(byte_characters()), *(left + right for left, right in merges)])
    if clash := [token for token in special_tokens if token in ordinary]:
        raise TokenizerError(
            f"special tokens {clash} are ordinary words of this vocabulary. Choose others, like <|name|>."
        )
    vocabulary = {entry: index for index, entry in enumerate([*special_tokens, *ordinary])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizer(pretokenizer)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    return tokenizer.to_str(pretty=True) + "\n"


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What the rest of the build needs to know of a `tokenizer.json`."""

    path: Path
    sha256: str
    vocab_size: int
    eos_id: int
    special_tokens: dict[str, int]
    plain_json: str = field(repr=False)
    """The file's text for the encoder, from `plain_json`."""


def load_tokenizer(path: Path, *, eos_token: str) -> TokenizerInfo:
    """Read a `tokenizer.json` and check what can be checked without loading the encoder.

    Raises:
        TokenizerError: it is not a byte-level BPE, rewrites text, or lacks the EOS token.
    """
    text = path.read_bytes()
    try:
        data: dict[str, Any] = json.loads(text)
        added = data.get("added_tokens") or []
        vocab_size = 1 + max([*data["model"]["vocab"].values(), *(token["id"] for token in added)])
        special = find_special(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TokenizerError(f"{path}: not a tokenizer.json with a vocabulary: {error!r}") from error
    faults = list(find_faults(data))
    if eos_token not in special:
        faults.append(f"no special token {eos_token!r} to end documents; there are {sorted(special)}.")
    if faults:
        raise TokenizerError("\n".join(f"{path}: {fault}" for fault in faults))
    digest = hashlib.sha256(text).hexdigest()
    return TokenizerInfo(path, digest, vocab_size, special[eos_token], special, plain_json(data))


def plain_json(data: dict[str, Any]) -> str:
    """Return a `tokenizer.json` without added tokens, which would be found inside documents, and what cuts or pads."""
    return json.dumps(data | {"added_tokens": [], "truncation": None, "padding": None, "post_processor": None})


class Encoder:
    """Encodes batches of text, and single documents by the reference implementation.

    Thread-unsafe: one in each worker process. Results depend on the tokenizer alone.
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
        except Exception as error:  # a bare Exception is what tokenizers raises
            raise TokenizerError(f"tokenizers cannot read this tokenizer: {error}. Restore the file.") from error
        if faults := list(find_differences(self, special_tokens)):
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
def load_encoder(path: str, special_tokens: tuple[tuple[str, int], ...]) -> Encoder:
    """Return the encoder of a plain tokenizer file, made once in each process. Its name must tell its content."""
    return Encoder(Path(path).read_text(encoding="utf-8"), dict(special_tokens))


@contextlib.contextmanager
def _native_training() -> Generator[None]:
    """Silence native training (gigatoken prints its progress), and let interrupts end the process while it runs.

    Python's own handlers would wait for the native code to return, which may take minutes; the next build clears what
    was left.
    """
    in_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 1)
        os.dup2(null, 2)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for target, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, target)
            os.close(copy)
        os.close(null)

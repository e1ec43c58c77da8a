"""How much text a rewriting tokenizer keeps: documents are compared with their tokens, and differences counted.

For a tokenizer that keeps every byte nothing is counted: `Encoder.encode` refuses a document that would lose any.
Others rewrite documents by design. Here the bytes of each document's tokens are compared with its text; where they are
neither that nor what the normalizer makes of it, the build stops. It costs little compared with encoding, and the
normalizer for documents that were rewritten.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import text_bytes, text_offsets, wrap_numbers, wrap_texts
from pipeline.clean.reasons import Dropped
from pipeline.clean.tally import Documents
from pipeline.tokenizer.given_tokenizer import TokenizerError
from shards.format.arrays import Int64s, Tokens
from shards.format.tokenizer_json import Spelling
from shards.format.vocabulary import Vocabulary
from shards.terminal.display import printable

if TYPE_CHECKING:
    import tokenizers

SHOWN = 3
"""Rewritten documents, and unknown parts of documents, that are kept as examples of each unit."""
_SHOWN_CHARACTERS = 60


@dataclass(slots=True)
class KeptText:
    """How much of the encoded documents their tokens keep, copies included. Plain data, for a receipt."""

    documents: int = 0
    rewritten: int = 0  # documents whose tokens have other bytes than their text
    text_bytes: int = 0
    token_bytes: int = 0  # that all tokens stand for; none for an unknown token
    tokens: int = 0  # without BOS and EOS
    unknown: int = 0  # tokens that stand for characters outside the vocabulary
    # The places where the first rewritten documents differ: the text there, and what its tokens say.
    shown: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    # The first characters that became an unknown token in some documents, with the text around them.
    lost: list[str] = field(default_factory=list[str])


class KeptCounter:
    """Compares batches of documents with their tokens."""

    def __init__(self, vocabulary: Vocabulary, spelling: Spelling, reference: tokenizers.Tokenizer):
        """Set the tokenizer.

        Args:
            vocabulary: the bytes of each id that text can yield.
            spelling: how its entries spell text.
            reference: the tokenizer.
        """
        self._spelling, self._reference = spelling, reference
        entries = [b"" if token == spelling.unknown else entry for token, entry in enumerate(vocabulary.entries)]
        self._entries = wrap_texts(pa.large_binary(), entries)

    def add(self, kept: KeptText, documents: Documents, ids: Tokens, offsets: Int64s) -> None:
        """Count what is kept of a batch of documents.

        Args:
            kept: the counts so far, which change.
            documents: the documents.
            ids: their tokens, one document after another.
            offsets: where each begins, int64 `(documents + 1,)`.

        Raises:
            TokenizerError: the tokens of a document are neither its text nor its normalized text.
        """
        spelling = self._spelling
        # The bytes of all tokens, end to end, and where those of each document end.
        taken = self._entries.take(wrap_numbers(pa.uint32(), ids))
        joined = bytes(text_bytes(taken))
        ends: list[int] = text_offsets(taken)[offsets].tolist()
        unknown = np.flatnonzero(ids == spelling.unknown) if spelling.unknown is not None else np.zeros(0, np.int64)
        has_unknown = np.diff(np.searchsorted(unknown, offsets)) > 0
        # Count what needs no look at a document.
        kept.documents += len(documents)
        kept.text_bytes += documents.num_bytes
        kept.token_bytes += ends[-1]
        kept.tokens += len(ids)
        kept.unknown += len(unknown)
        # Compare each document with its tokens; those that differ must be what the normalizer makes.
        for number, text in enumerate(map(bytes, documents)):
            held = joined[ends[number] : ends[number + 1]]
            if held.removeprefix(spelling.prefix) == text:
                continue
            kept.rewritten += 1
            if has_unknown[number]:
                if len(kept.lost) < SHOWN:
                    kept.lost.append(self._show_unknown(text.decode()))
            elif spelling.keeps == "normalized":
                self._check_normalized(text, held)
            if len(kept.shown) < SHOWN:
                kept.shown.append(_show(text, held.removeprefix(spelling.prefix)))

    def _check_normalized(self, text: bytes, held: bytes) -> None:
        normalizer: Any = self._reference.normalizer
        normal: str = text.decode() if normalizer is None else normalizer.normalize_str(text.decode())
        normalized = normal.replace(self._spelling.space or " ", " ").encode()
        if self._spelling.byte_fallback and b"<0x" in normalized:
            return  # a Unigram takes the text `<0x0A>` for the entry of a byte
        if held not in (normalized, self._spelling.prefix + normalized):
            expected, found = _show(normalized, held)
            raise TokenizerError(
                f"the tokenizer does not keep text: its normalizers turn a document into {expected!r}, but it "
                f"decodes to {found!r}. The document begins with {text.decode()[:80]!r}. Use a tokenizer whose "
                "pre-tokenizer drops and replaces no character."
            )

    def _show_unknown(self, text: str) -> str:
        """Return the first characters of a text that are not kept, as unknown, and where they are."""
        encoding = self._reference.encode(text, add_special_tokens=False)
        start, stop = next(
            span for token, span in zip(encoding.ids, encoding.offsets, strict=True) if token == self._spelling.unknown
        )
        around = text[max(0, start - _SHOWN_CHARACTERS // 3) : stop + _SHOWN_CHARACTERS // 3]
        return f"{text[start:stop]!r} in {around!r}"


def _show(text: bytes, held: bytes) -> tuple[str, str]:
    """Return a text and what is kept of it from a little before the place where they begin to differ."""
    same = len(os.path.commonprefix([text, held]))  # noqa: RUF071  of bytes
    start = max(0, same - _SHOWN_CHARACTERS // 3)
    shown, other = (part[start : start + 4 * _SHOWN_CHARACTERS].decode("utf-8", "ignore") for part in (text, held))
    return shown[:_SHOWN_CHARACTERS], other[:_SHOWN_CHARACTERS]


def add_up_kept_text(units: Iterable[KeptText | None]) -> KeptText | None:
    """Return what is kept of the documents of several units; None if nothing is rewritten."""
    found = [kept for kept in units if kept is not None]
    if not found:
        return None
    counts = {one.name: sum(getattr(kept, one.name) for kept in found) for one in fields(KeptText)[:-2]}
    shown = [places for kept in found for places in kept.shown][:SHOWN]
    lost = [text for kept in found for text in kept.lost][:SHOWN]
    return KeptText(**counts, shown=shown, lost=lost)


def describe_kept(source: str, kept: KeptText) -> str:
    """Return what `plan` and `build` say about a source whose documents the tokenizer rewrites."""
    said = f"tokenizer: rewrites {Dropped(kept.rewritten, kept.documents).describe()} of {source}"
    if kept.shown:
        text, held = kept.shown[0]
        said += f", such as {printable(text)!r} to {printable(held)!r}"
    if kept.unknown:
        said += f"; {kept.unknown / max(1, kept.tokens):.4%} of their tokens are unknown"
    return said


def check_unknown(source: str, kept: KeptText, max_unknown: float) -> None:
    """Check by the text that was kept that a tokenizer knows the characters of a source.

    Raises:
        TokenizerError: more of its tokens are unknown than the recipe allows; with examples.
    """
    unknown = Dropped(kept.unknown, kept.tokens)
    said = f"{unknown.describe('token')} stand for characters that the tokenizer does not know"
    change = "They are lost in the set. Use a tokenizer with byte_fallback, drop such documents (`drop_if_matches`)"
    examples = map(printable, kept.lost)
    key = "tokenizer.max_unknown"
    for alarm in unknown.refuse(source, said, max_unknown, key=key, change=change, examples=examples):
        raise TokenizerError(alarm)

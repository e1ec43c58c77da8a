"""The encoder: encode text with a `tokenizer.json`.

Text is data: the encoder loads the tokenizer without added tokens (`make_plain`), so that the characters of a special
token in a document are encoded as characters. What gigatoken cannot run, `tokenizers` encodes, at its own speed. The
ids are the same as from `tokenizers` in both cases, however much of the text the tokenizer keeps.

Memory: gigatoken keeps every word that it has seen, so it is made anew when the process has grown by `GROWTH_BYTES`.
Long documents are encoded in pieces if their words can be told from the text around a cut; of a byte-level BPE they are
also cut inside words. A text of 100 MB without such a place is encoded whole: gigatoken then takes up to 40 times its
size, `tokenizers` 130 times. So are long runs of slashes, and of letters if the tokenizer spells spaces as `▁`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ctypes
import functools
import hashlib
import itertools
import json
import os
import re
import resource
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import split_by_size, text_bytes, text_offsets, wrap_texts
from pipeline.engine.receipts import TaskOutput
from pipeline.recipe.chat import ChatRecipe
from pipeline.tokenizer.chat_tokens import add_chat_tokens
from pipeline.tokenizer.given_tokenizer import TokenizerError
from pipeline.tokenizer.kept_text import KeptCounter
from pipeline.tokenizer.unicode_tables import find_documents
from shards.errors import remedy_of
from shards.format.arrays import Int64s, UInt32s, find_bounds
from shards.format.chat import TRAINED_ROLE, Message
from shards.format.tokenizer_json import (
    Part,
    find_special,
    find_spelling,
    find_without_bytes,
    is_byte_level,
    make_plain,
    make_set_tokenizer,
    rename_entries,
    run_tokenizers,
    without_prefix,
)
from shards.format.vocabulary import MAX_TOKENIZER_BYTES, Vocabulary, read_vocabulary
from shards.stores.files import read_file
from shards.stores.open import open_store

Tokens = tuple[UInt32s, Int64s]
"""Of several texts: ids `(num_tokens,)`, and offsets `(num_texts + 1,)` into them."""

_PROBES = (
    # Words, digits, contractions, spaces and line ends of the kinds that pre-tokenizers split differently.
    "Probe: it's 12345 caf\u00e9s, \u4e2d\u6587!\r\n\n\tHTTPServer  x\u00a0 \U0001f642 \x00 DON'T   ",
    # Beginnings, ends, and characters that normalizers change.
    "",
    " a",
    "a  ",
    "\n\n b",
    "\u2581a \u2581",
    "e\u0301 \u212b \ufb01 \uff21\u3000x \u1e9b\u0323",
    "\x00\x7f<0x0A>\r",
)
"""Texts that gigatoken must encode as `tokenizers` does."""

GROWTH_BYTES = 256 << 20
"""gigatoken is made anew when the process has grown by this much: 25 MB of text whose words never come again, gigabytes
of ordinary text. It takes 0.03 s."""
PIECE_BYTES = 2 << 20
"""Longer documents are encoded in pieces of about this size, shorter ones together: by `tokenizers` as much at once."""
_TOGETHER_BYTES = 16 << 20
"""What gigatoken encodes at once; with 2 MB it takes a sixth longer."""
_WINDOW_BYTES = 512
"""Text before and after a cut that shows that both sides have the same tokens without each other."""
_CUT = re.compile(r"(?<=[^\W_])\W(?=[^\W_])")
"""One space, line end or symbol between two letters or digits: here even a long run of either does not matter."""
_OPEN = re.compile(r"[\s/]")
"""Where a run of these ends depends on what is before it, far away: no cut is inside one, but in white space alone."""


class Encoder:
    """Encodes batches of text, and single documents by the reference implementation.

    Not thread-safe: each worker process has one. Results depend on the tokenizer alone.

    Attributes:
        slow_because: why `tokenizers` encodes in the place of gigatoken; empty if it does not.
        kept: compares documents with their tokens; None if the tokenizer keeps every byte.
    """

    def __init__(self, tokenizer: Part, chat_tokens: Sequence[str] | None = None):
        """Load the encoders of a tokenizer.

        Args:
            tokenizer: a parsed tokenizer.json.
            chat_tokens: special tokens to add, for pieces of conversations; None for the text of documents.

        Raises:
            TokenizerError: `tokenizers` cannot run it, text yields a special token, or characters are lost.
        """
        import tokenizers

        if chat_tokens is not None:
            tokenizer = without_prefix(add_chat_tokens(tokenizer, chat_tokens))
        # Special tokens are characters in text, so the encoders do not know them.
        plain, self._tokenizer = make_plain(tokenizer), tokenizer
        written = json.dumps(plain, ensure_ascii=False)
        try:
            self._reference = tokenizers.Tokenizer.from_str(written)
        except Exception as error:  # tokenizers raises a bare Exception
            raise TokenizerError(
                f"tokenizers cannot read it: {error}{remedy_of(error) or '. Use another file, or train one.'}"
            ) from error
        spelling = find_spelling(plain)
        for token, token_id in find_special(tokenizer).items():
            if token_id != spelling.unknown and token_id in self.encode_reference(token):
                word = f"special token {token!r} is an ordinary word of the vocabulary"
                raise TokenizerError(f"{word}: text yields its id. Rename it.")
        self._keeps = spelling.keeps
        self._cuts_words = is_byte_level(plain) and plain["model"].get("type", "BPE") == "BPE"
        # gigatoken encodes if it gives the ids of `tokenizers` for all probes.
        self._described = _describe_for_gigatoken(tokenizer, written)
        expected = {probe: self.encode_reference(probe) for probe in _PROBES}
        self._fast, self.slow_because = _load_fast(self._described, expected)
        self._least_memory = _resident_bytes()
        rewrites = spelling.keeps != "bytes"
        self.kept = KeptCounter(self._vocabulary, spelling, self._reference) if rewrites else None
        if self._fast is None:
            self._encode_slowly(_wrap(_PROBES[0].encode()))

    def encode(self, text: pa.LargeStringArray) -> Tokens:
        """Encode documents; no EOS is added.

        Returns:
            ids: uint32 `(num_tokens,)`; and offsets: int64 `(num_documents + 1,)` into them.

        Raises:
            TokenizerError: a tokenizer that keeps every byte loses characters of a document; gigatoken's never do.
            InputError: a pattern of the tokenizer takes too many steps.
        """
        sizes = np.diff(text_offsets(text))
        most = PIECE_BYTES if self._fast is None else _TOGETHER_BYTES
        parts: list[UInt32s] = []
        lengths = np.zeros(len(text), np.int64)
        for first, last in split_by_size(np.where(sizes > PIECE_BYTES, most + 1, sizes), most):
            if sizes[first] > PIECE_BYTES:
                pieces = self._encode_long(text[first:last])
                parts += pieces
                lengths[first] = sum(map(len, pieces))
            else:
                ids, offsets = self._encode_batch(text[first:last])
                parts.append(ids)
                lengths[first:last] = np.diff(offsets)
        offsets = find_bounds(lengths)
        if len(parts) == 1:
            return parts[0], offsets
        # Each part is let go as soon as it is copied: the ids of a long document are not in memory twice.
        ids = np.empty(int(offsets[-1]), np.uint32)
        end = len(ids)
        while parts:
            part = parts.pop()
            ids[end - len(part) : end] = part
            end -= len(part)
        return ids, offsets

    def _encode_batch(self, text: pa.LargeStringArray) -> Tokens:
        if self._fast is None:
            return self._encode_slowly(text)
        ids, offsets = self._encode_fast(text)
        other = find_documents(text, has_normalizer=self._keeps != "bytes")
        if not len(other):
            return ids, offsets
        # Replace the tokens of these documents, without an array for each of the others.
        own, bounds = self._encode_slowly(text.take(other))
        parts: list[UInt32s] = []
        lengths, end = np.diff(offsets), 0
        for number, start, stop in zip(other, bounds[:-1], bounds[1:], strict=True):
            parts += [ids[end : offsets[number]], own[start:stop]]
            lengths[number], end = stop - start, offsets[number + 1]
        return np.concatenate([*parts, ids[end:]]), find_bounds(lengths)

    def encode_reference(self, text: str) -> list[int]:
        """Encode one document with the reference encoder, `tokenizers`, special tokens taken as text."""
        return self._run(self._reference.encode, text).ids

    def encode_rendered(self, messages: Sequence[Message], chat: ChatRecipe) -> list[int] | None:
        """Encode a conversation as one text by `tokenizers`, special tokens matched: what the pieces must give.

        Returns:
            None where it must not: a content spells a special token, or an answer begins with white space, which the
            end of the opening would join.
        """
        before, after = chat.table
        known = find_special(self._tokenizer)
        if any(token in content for _, content in messages for token in known) or any(
            role == TRAINED_ROLE and content[:1].isspace() for role, content in messages
        ):
            return None
        text = "".join(before[role] + content + after for role, content in messages)
        return self._run(self._marking.encode, text).ids

    @functools.cached_property
    def _marking(self) -> Any:
        import tokenizers

        return tokenizers.Tokenizer.from_str(json.dumps(make_set_tokenizer(self._tokenizer, None)))

    def _run(self, encode: Callable[..., Any], text: Any) -> Any:
        return run_tokenizers(self._tokenizer, "", encode, text, add_special_tokens=False)

    def _encode_long(self, text: pa.LargeStringArray) -> list[UInt32s]:
        """Return the ids of a long document, encoded in pieces; each begins where a cut changes no token."""
        data = text_bytes(text)
        pieces: list[tuple[int, UInt32s, list[int]]] = []  # where each begins, its ids, and the id that must follow
        begin, size = 0, PIECE_BYTES
        while begin < len(data):
            end = min(begin + size, len(data))
            piece = self._encode_piece(data, begin, end)
            if piece is None:
                size *= 2
            elif pieces and pieces[-1][2] not in ([], piece[1][:1].tolist()):
                begin = pieces.pop()[0]  # its cut changes tokens
                size = 2 * (end - begin)
            else:
                place, ids, following = piece
                pieces.append((begin, ids, following))
                begin, size = place, PIECE_BYTES
        return [ids for _, ids, _ in pieces]

    def _encode_piece(self, data: memoryview, begin: int, end: int) -> tuple[int, UInt32s, list[int]] | None:
        """Encode a long document from a place on, to another one before `end` where it may be cut.

        A cut is between words, or inside a word of a byte-level BPE. BPE merges the pair with the lowest rank, of
        several the leftmost. Where it leaves a place between two tokens, it does to each side what it would do to this
        side alone. So tokens of two texts are those of the joined text if the last and the first are neighbours in
        some text.
        Source: corollaries II and III of https://github.com/github/rust-gems/blob/main/crates/bpe/README.md.

        Returns:
            The place of the cut; the ids before it; and of a cut inside a word, the id with which the next piece must
            begin. None if there is no such place.
        """
        if place := end if end == len(data) else self._find_cut(data, end):
            return place, self._encode_batch(_wrap(data[begin:place]))[0], []
        text = str(data[begin:end], "utf-8", "ignore")
        tail = text[-3 * _WINDOW_BYTES :]
        if not self._cuts_words or (_OPEN.search(tail) and not tail.isspace()):
            return None
        normalizer: Any = self._reference.normalizer
        if normalizer and normalizer.normalize_str(text) != text:
            return None  # its tokens have other bytes
        # What may be far before a cut: a character of each kind of those since the last white space.
        run = text if tail.isspace() else text.rsplit(None, 1)[-1]
        far = {c if c.isspace() else unicodedata.category(c): c for c in sorted(set(run))}.values()
        ids, _ = self._encode_batch(_wrap(text.encode()))
        ends = begin + np.cumsum(self._entry_lengths[ids])
        near = (ends[:-1] >= end - 2 * _WINDOW_BYTES) & (ends[:-1] < end - _WINDOW_BYTES)
        for last in np.flatnonzero(near)[:99].tolist():
            place = int(ends[last])
            if data[place] & 0xC0 != 0x80 and self._is_inside(data, place, far):
                return place, ids[: last + 1], ids[last + 1 : last + 2].tolist()
        return None

    def _find_cut(self, data: memoryview, end: int) -> int:
        """Return a place a little before `end` where a cut changes no token; 0 if there is none.

        A word begins there, or white space that the tokenizer drops, after a letter, and the text around it has the
        same tokens with and without the cut.
        """
        for middle in range(end - _WINDOW_BYTES, end - PIECE_BYTES // 32, -_WINDOW_BYTES):
            begin = middle - _WINDOW_BYTES
            while data[begin] & 0xC0 == 0x80:  # inside a character
                begin += 1
            window = str(data[begin : middle + _WINDOW_BYTES], "utf-8", "ignore")
            match = _CUT.search(window, len(window) // 2)
            if match is None:
                continue
            at, encoding = match.start(), self._run(self._reference.encode, window)
            pairs = itertools.pairwise(zip(encoding.word_ids, encoding.offsets, strict=True))
            is_word = any(stop <= at <= start and last != own for (last, (_, stop)), (own, (start, _)) in pairs)
            if is_word and encoding.ids == self.encode_reference(window[:at]) + self.encode_reference(window[at:]):
                return begin + len(window[:at].encode())
        return 0

    def _is_inside(self, data: memoryview, place: int, far: Iterable[str]) -> bool:
        """Return whether a place is inside a word, and each side alone has the words that it has here.

        Some patterns split before a capital if any letter before was small, however `far`: each kind is tried.
        """
        begins = place - _WINDOW_BYTES, place
        left, right = (str(data[begin : begin + _WINDOW_BYTES], "utf-8", "ignore") for begin in begins)
        if self._reference.normalizer and not right[:1].isalpha():
            return False  # a mark may move to the other side
        split: Any = self._reference.pre_tokenizer.pre_tokenize_str
        for before, after in itertools.product(far, ("Ab", " \nAb")):
            texts = f"{before}{left}", f"{right}{after}", f"{before}{left}{right}{after}"
            joined, others, whole = ([word for word, _ in split(text)] for text in texts)
            joined[-1] += others.pop(0)
            if joined + others != whole:
                return False
        return True

    def _encode_fast(self, text: pa.LargeStringArray) -> Tokens:
        memory = _resident_bytes()
        self._least_memory = min(self._least_memory, memory)
        if memory - self._least_memory > GROWTH_BYTES:
            self._fast = None  # its memory goes back before another takes some, and to the system: malloc would keep it
            getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
            self._fast, _ = _load_fast(self._described, {})
            self._least_memory = _resident_bytes()
        return _encode_fast(self._fast, text)

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary:
        # It takes 0.06 s, and most tokenizers need none. An entry that is an added token, too, is spelt as an entry.
        return read_vocabulary(json.dumps(make_set_tokenizer(self._tokenizer, None)).encode())

    @functools.cached_property
    def _entry_lengths(self) -> Int64s:
        return self._vocabulary.entry_lengths()

    def _encode_slowly(self, text: pa.LargeStringArray) -> Tokens:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker has one core
        encodings = self._run(self._reference.encode_batch_fast, text.to_pylist())
        documents = [encoding.ids for encoding in encodings]
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        ids = np.fromiter(itertools.chain.from_iterable(documents), np.uint32, int(offsets[-1]))
        if self._keeps != "bytes":
            return ids, offsets  # `kept` compares them
        # Tokens have the bytes of their text, so a document that was rewritten or cut has another length.
        found = np.diff(find_bounds(self._entry_lengths[ids])[offsets])
        expected = np.diff(text_offsets(text))
        if len(wrong := np.flatnonzero(found != expected)):
            first = int(wrong[0])
            raise TokenizerError(
                f"the tokenizer does not keep text: a document of {expected[first]} bytes becomes tokens of "
                f"{found[first]} bytes. It begins with {text[first].as_py()[:80]!r}. Use a tokenizer whose "
                "pre-tokenizer drops and replaces no character."
            )
        return ids, offsets


def _resident_bytes() -> int:
    """Return the memory that this process has now, for the encoder to bound."""
    with open("/proc/self/statm", "rb") as file:  # 0.02 ms
        return int(file.read().split()[1]) * resource.getpagesize()


def _load_fast(described: str, expected: dict[str, list[int]]) -> tuple[Any, str]:
    """Return gigatoken's encoder if it encodes the probes as the tokenizer does; else None and the reason."""
    import gigatoken

    try:
        fast = gigatoken.Tokenizer.from_json(described)
    except (ValueError, RuntimeError) as error:
        return None, f"gigatoken cannot run it ({str(error).partition(chr(10))[0]})"
    for probe, ids in expected.items():
        if _encode_fast(fast, _wrap(probe.encode()))[0].tolist() != ids:
            return None, f"gigatoken encodes {probe!r} differently from `tokenizers`"
    return fast, ""


def _describe_for_gigatoken(tokenizer: Part, plain: str) -> str:
    """Return the tokenizer.json that gigatoken, the fast encoder, loads: the plain one, unless entries need a name.

    gigatoken takes characters that spell no byte for text, and would give the id of an added token `\\n` to the text of
    the entry `Ċ`. Such entries have names here that begin with the byte 0xFF, which no text holds.
    """
    names = {text: f"\xff{index}" for text, index in find_without_bytes(tokenizer).items()}
    return json.dumps(rename_entries(make_plain(tokenizer), names)) if names else plain


def _encode_fast(fast: Any, text: pa.LargeStringArray) -> Tokens:
    import awkward as ak

    layout: Any = fast.encode_batch(ak.from_arrow(text), parallel=False).layout
    return np.asarray(layout.content.data), np.asarray(layout.offsets)


def _wrap(text: bytes | memoryview) -> pa.LargeStringArray:
    return wrap_texts(pa.large_string(), [text])


def read_tokenizer(path: str, sha256: str, task: str | None = None) -> bytes:
    """Return a `tokenizer.json`.

    Args:
        path: the file.
        sha256: the SHA-256 that it must have.
        task: the address of the folder of the task that trained it; None if the recipe names the file.

    Raises:
        TokenizerError: the file has changed.
        WorkFileDamagedError: it is a task's output and has changed.
    """
    file = Path(path)
    given = read_file(file, MAX_TOKENIZER_BYTES) if task is None else TaskOutput(open_store(task)).read(file.name)
    text = bytes(given)
    if hashlib.sha256(text).hexdigest() != sha256:
        raise TokenizerError(f"{path}: changed while the build ran. Restore it, or run the same command again.")
    return text


@functools.lru_cache(maxsize=2)
def load_encoder(
    path: str, sha256: str, task: str | None = None, chat_tokens: tuple[str, ...] | None = None
) -> Encoder:
    """Return the encoder of a `tokenizer.json`, given as for `read_tokenizer`; it is made once per process.

    With `chat_tokens` it encodes pieces of conversations.

    Raises:
        TokenizerError: as for `Encoder`, or the file has changed.
        WorkFileDamagedError: as for `read_tokenizer`.
    """
    text = read_tokenizer(path, sha256, task)
    try:
        return Encoder(json.loads(text), chat_tokens)
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from error

"""The encoder: read a `tokenizer.json`, and encode text with it.

Text is data: the encoder loads the tokenizer without added tokens (`make_plain`), so that the characters of a special
token in a document are encoded as characters. What gigatoken cannot run, `tokenizers` encodes, at its own speed. The
ids are the same as from `tokenizers` in both cases, however much of the text the tokenizer keeps.

Memory: gigatoken keeps every word that it has seen, so it is made anew when the process has grown by `GROWTH_BYTES`.
Long documents are encoded in pieces if their words can be told from the text around a cut; of a byte-level BPE they are
also cut inside words. A text of 100 MB without such a place is encoded whole: gigatoken then takes up to 40 times its
size, `tokenizers` 130 times. So are long runs of slashes, and of letters if the tokenizer spells spaces as `▁`.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import json
import os
import re
import resource
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine.receipts import TaskOutput
from pipeline.tokenizer.given_tokenizer import (
    TokenizerError,
    describe_ignored,
    describe_kind,
    find_bos,
    find_faults,
    find_wrong_ids,
)
from pipeline.tokenizer.kept_text import KeptCounter
from shards.errors import remedy_of
from shards.format.tokenizer_json import (
    find_entries,
    find_special,
    find_spelling,
    find_without_bytes,
    is_byte_level,
    make_plain,
    make_set_tokenizer,
    rename_entries,
    run_tokenizers,
    say_fault,
)
from shards.format.vocabulary import MAX_TOKENIZER_BYTES, Vocabulary, read_vocabulary
from shards.stores.files import read_file
from shards.stores.open import open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.arrow_arrays import Int64s, UInt32s

    Tokens = tuple[UInt32s, Int64s]
    """Of several texts: ids `(num_tokens,)`, and offsets `(num_texts + 1,)` into them."""

_PROBE = "Probe: it's 12345 caf\u00e9s, \u4e2d\u6587!\r\n\n\tHTTPServer  x\u00a0 \U0001f642 \x00 DON'T   "
"""Words, digits, contractions, spaces and line ends of the kinds that pre-tokenizers split differently."""
_REWRITTEN_PROBES = (
    "",
    " a",
    "a  ",
    "\n\n b",
    "\u2581a \u2581",
    "e\u0301 \u212b \ufb01 \uff21\u3000x \u1e9b\u0323",
    "\x00\x7f<0x0A>\r",
)
"""The same for tokenizers that rewrite text: beginnings, ends, and characters that normalizers change."""

GROWTH_BYTES = 256 << 20
"""gigatoken is made anew when the process has grown by this much: 25 MB of text whose words never come again, gigabytes
of ordinary text. It takes 0.03 s."""
PIECE_BYTES = 2 << 20
"""Longer documents are encoded in pieces of about this size."""
_FAST_BYTES = 16 << 20
"""Text that gigatoken encodes before the process is measured again."""
_WINDOW_BYTES = 512
"""Text before and after a cut that shows that both sides have the same tokens without each other."""
_REACH = 1 << 16
"""Characters before a cut inside a word that are encoded to find it; all of the piece if these are too few."""
_CUT = re.compile(r"(?<=[^\W_])\W(?=[^\W_])")
"""One space, line end or symbol between two letters or digits: here even a long run of either does not matter."""
_OPEN = re.compile(r"[\s/]")
"""Where a run of these ends depends on what is before it, far away: no cut is inside one, but in white space alone."""


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """A `tokenizer.json`, and the values that the build needs from it."""

    path: str
    file_sha256: str
    """Of the file at `path`."""
    text: str = field(repr=False)
    """The `tokenizer.json` of the set: the file, or the file without what would give other ids than training."""
    sha256: str
    """Of `text`."""
    vocab_size: int
    eos_id: int
    special_tokens: dict[str, int]
    task: str | None = None
    """The address of the folder of the task that trained it; None if the recipe names the file."""
    bos_id: int | None = None
    """The id that begins each document; None if none does."""
    ignored: tuple[str, ...] = ()
    """Requests of the file that training ignores, and the set's own file does not have."""


def read_encoder_file(
    path: Path | str,
    *,
    eos_token: str,
    bos: bool | str = False,
    content: bytes | None = None,
    task: str | None = None,
) -> TokenizerInfo:
    """Read a `tokenizer.json`, and check it as far as possible without loading the encoder.

    Args:
        path: the file.
        eos_token: the special token that ends documents.
        bos: the special token that begins documents; True for the file's own, False for none.
        content: the file's bytes, if they have been read and checked; None to read the file.
        task: the address of the folder of the task that trained it.

    Raises:
        TokenizerError: it cannot be read, is of a kind that cannot be used, or lacks the EOS or BOS token.
    """
    try:
        content = read_file(Path(path), MAX_TOKENIZER_BYTES) if content is None else content
    except OSError as error:
        remedy = remedy_of(error) or ". Use another file, or train one."
        raise TokenizerError(f"{path}: cannot be read: {error.strerror}{remedy}") from error
    # Whatever is missing or of another type than in a tokenizer.json raises one of these errors.
    try:
        data: dict[str, Any] = json.loads(content)
        special = find_special(data)
        faults = list(find_faults(data))
        if task is None and not faults:
            faults = find_wrong_ids(data)
        ignored = tuple(describe_ignored(data))
        bos_token = find_bos(data) if bos is True else bos or None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found = describe_kind(Path(path), content) or (
            f"not a tokenizer.json with a vocabulary: {say_fault(error)}. Use another file, or train one."
        )
        raise TokenizerError(f"{path}: {found}") from error
    # The tokens that end and begin documents must be special: text never yields them.
    if eos_token not in special:
        faults.append(f"no special token {eos_token!r} to end documents; there are {sorted(special)}.")
    if bos and bos_token not in special:
        found = "which special token begins documents is not clear" if bos is True else f"no special token {bos!r}"
        faults.append(f"tokenizer.bos: {found}; there are {sorted(special)}. Give one of them as `bos`.")
    elif bos_token is not None and bos_token == eos_token:
        faults.append(f"tokenizer.bos: {bos_token!r} ends documents already. Give another one, or leave `bos` out.")
    if faults:
        raise TokenizerError("\n".join(f"{path}: {fault}" for fault in faults))
    own = make_set_tokenizer(data, bos_token)
    text = (
        content.decode()
        if own == data and content[:1] == b"{"
        else json.dumps(own, indent=2, ensure_ascii=False) + "\n"
    )
    special = find_special(own)
    return TokenizerInfo(
        path=str(path),
        file_sha256=hashlib.sha256(content).hexdigest(),
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        vocab_size=1 + max([*find_entries(own).values(), *special.values()]),
        eos_id=special[eos_token],
        special_tokens=special,
        task=task,
        bos_id=None if bos_token is None else special[bos_token],
        ignored=ignored,
    )


class Encoder:
    """Encodes batches of text, and single documents by the reference implementation.

    Not thread-safe: each worker process has one. Results depend on the tokenizer alone.

    Attributes:
        slow_because: why `tokenizers` encodes in the place of gigatoken; empty if it does not.
        kept: compares documents with their tokens; None if the tokenizer keeps every byte.
    """

    def __init__(self, tokenizer: dict[str, Any]):
        """Load the encoders of a tokenizer.

        Args:
            tokenizer: a parsed tokenizer.json.

        Raises:
            TokenizerError: `tokenizers` cannot run it, text yields a special token, or characters are lost.
        """
        import tokenizers

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
        # gigatoken encodes if it gives the ids of `tokenizers` for all probes.
        probes = (_PROBE,) if spelling.keeps == "bytes" else (_PROBE, *_REWRITTEN_PROBES)
        self._described = _describe_for_gigatoken(tokenizer, written)
        expected = {probe: self.encode_reference(probe) for probe in probes}
        self._fast, self.slow_because = _load_fast(self._described, expected)
        self.kept: KeptCounter | None = None
        self._least_memory = _resident_bytes()
        if spelling.keeps != "bytes":
            entries = list(self._vocabulary.entries)
            if spelling.unknown is not None:
                entries[spelling.unknown] = b""
            self.kept = KeptCounter(replace(self._vocabulary, entries=entries), spelling, self._reference)
        if self._fast is None:
            self._encode_slowly(_wrap(_PROBE))

    def encode(self, text: pa.LargeStringArray) -> Tokens:
        """Encode documents with the tokenizer; no EOS is added.

        Returns:
            ids: uint32 `(num_tokens,)`; and offsets: int64 `(num_documents + 1,)` into them.

        Raises:
            TokenizerError: a tokenizer that keeps every byte loses characters of a document; gigatoken's never do.
            InputError: a pattern of the tokenizer takes too many steps.
        """
        # Long documents in pieces. In a run of one letter, the tokens at a cut depend on all before it.
        for reach in (_REACH, 4 * PIECE_BYTES):
            pieces, edges, seams = self._cut(text, reach)
            ids, offsets = self._encode_pieces(pieces)
            if all(ids[offsets[piece] - 1 : offsets[piece] + 1].tolist() == pair for piece, pair in seams.items()):
                return ids, offsets[edges]
        return self._encode_pieces(text)

    def _encode_pieces(self, text: pa.LargeStringArray) -> Tokens:
        import numpy as np

        if self._fast is None:
            return self._encode_slowly(text)
        from pipeline.tokenizer.unicode_tables import find_documents

        ids, offsets = _encode_parts(self._encode_fast, text, _FAST_BYTES)
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
        return np.concatenate([*parts, ids[end:]]), np.cumsum([0, *lengths], dtype=np.int64)

    def encode_reference(self, text: str) -> list[int]:
        """Encode one document with the reference encoder, `tokenizers`, special tokens taken as text."""
        return self._run(self._reference.encode, text).ids

    def _run(self, encode: Callable[..., Any], text: Any) -> Any:
        return run_tokenizers(self._tokenizer, "", encode, text, add_special_tokens=False)

    def _cut(self, text: pa.LargeStringArray, reach: int) -> tuple[pa.LargeStringArray, Int64s, dict[int, list[int]]]:
        """Return documents for the encoder, long ones in pieces.

        Also the first piece of each, `(documents + 1,)`; and of each piece that begins inside a word, the last token of
        the piece before and its own first: with any other, the cut changes tokens. They are found by encoding `reach`
        characters before the cut.
        """
        import numpy as np
        import pyarrow as pa

        from pipeline.arrow_arrays import text_offsets

        buffers: Any = text.buffers()
        offsets = text_offsets(text)
        if np.diff(offsets).max(initial=0) <= PIECE_BYTES:
            return text, np.arange(len(text) + 1), {}
        data = memoryview(buffers[2])
        places, edges, seams = [int(offsets[0])], [0], dict[int, list[int]]()
        for start, stop in itertools.pairwise(offsets.tolist()):
            while (start := start + PIECE_BYTES) < stop:
                place = self._find_cut(data[:stop], start)
                if not place and (inside := self._find_inside(data[:stop], places[-1], start, reach)):
                    place, seams[len(places)] = inside
                if place:
                    places.append(place)
                    start = place
            places.append(stop)
            edges.append(len(places) - 1)
        starts = pa.py_buffer(np.array(places, np.int64).data)
        pieces: Any = pa.LargeStringArray.from_buffers(len(places) - 1, starts, buffers[2])
        return pieces, np.array(edges), seams

    def _find_cut(self, data: memoryview, end: int) -> int:
        """Return a place a little before `end` where the encoder may cut text and change no token; 0 if there is none.

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
            words, places = encoding.word_ids, encoding.offsets
            pairs = zip(words, words[1:], places, places[1:], strict=False)
            is_word = any(stop <= at <= start and last != own for last, own, (_, stop), (start, _) in pairs)
            if is_word and encoding.ids == self.encode_reference(window[:at]) + self.encode_reference(window[at:]):
                return begin + len(window[:at].encode())
        return 0

    def _find_inside(self, data: memoryview, begin: int, end: int, reach: int) -> tuple[int, list[int]] | None:
        """Return a place before `end` where a cut inside a word changes no token, and the tokens before and after it.

        BPE merges the pair with the lowest rank, of several the leftmost. Where it leaves a place between two tokens,
        it does to each side what it would do to this side alone. So if two texts, each encoded alone, end and begin
        with tokens that are neighbours in some text, their tokens are those of the joined text.
        Source: corollaries II and III of https://github.com/github/rust-gems/blob/main/crates/bpe/README.md.
        """
        import numpy as np

        middle = end - 2 * _WINDOW_BYTES
        kind = self._tokenizer["model"].get("type", "BPE")
        if kind != "BPE" or not is_byte_level(self._tokenizer) or end - begin > 4 * PIECE_BYTES:
            return None
        text = str(data[begin:end], "utf-8", "ignore")
        head, tail = text[: middle - end], text[middle - end :]
        # What may be far before a cut: a character of each kind of those since the last white space.
        run = text if _OPEN.search(tail) else "".join([*head.rsplit(None, 1)[-1:], tail])
        far = {c if c.isspace() else unicodedata.category(c): c for c in sorted(set(run))}.values()
        ids, _ = self._encode_pieces(_wrap(text[-reach:]))
        ends = begin + len(text[:-reach].encode()) + np.cumsum(self._entry_lengths[ids])
        for last in np.flatnonzero((ends[:-1] >= middle) & (ends[:-1] < end - _WINDOW_BYTES))[:99].tolist():
            place = int(ends[last])
            if data[place] & 0xC0 != 0x80 and self._is_inside(data, place, far):
                return place, ids[last : last + 2].tolist()
        return None

    def _is_inside(self, data: memoryview, place: int, far: Iterable[str]) -> bool:
        """Return whether a place is inside a word, and each side alone has the words that it has here.

        Some patterns split before a capital if any letter before was small, however `far`: each kind is tried.
        """
        begins = place - _WINDOW_BYTES, place
        left, right = (str(data[begin : begin + _WINDOW_BYTES], "utf-8", "ignore") for begin in begins)
        normalizer: Any = self._reference.normalizer
        if normalizer and not (right[:1].isalpha() and normalizer.normalize_str(left + right) == left + right):
            return False  # the sides may become another text than the whole
        split: Any = self._reference.pre_tokenizer.pre_tokenize_str
        for before, after in itertools.product(far, ("Ab", " \nAb")):
            texts = f"{before}{left}", f"{right}{after}", f"{before}{left}{right}{after}"
            joined, others, whole = ([word for word, _ in split(text)] for text in texts)
            joined[-1] += others.pop(0)
            if joined + others != whole:
                return False
        return (left + right).isspace() or not _OPEN.search(left + right)

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
        # It takes 0.06 s, and most tokenizers need none.
        return read_vocabulary(json.dumps(self._tokenizer).encode())

    @functools.cached_property
    def _entry_lengths(self) -> Int64s:
        return self._vocabulary.entry_lengths()

    def _encode_slowly(self, text: pa.LargeStringArray) -> Tokens:
        return _encode_parts(self._encode_with_reference, text, PIECE_BYTES)

    def _encode_with_reference(self, text: pa.LargeStringArray) -> Tokens:
        import numpy as np
        import pyarrow.compute as pc

        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker has one core
        encodings = self._run(self._reference.encode_batch_fast, text.to_pylist())
        documents = [encoding.ids for encoding in encodings]
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        ids = np.fromiter(itertools.chain.from_iterable(documents), np.uint32, int(offsets[-1]))
        if self._keeps != "bytes":
            return ids, offsets  # `kept` compares them
        # Tokens have the bytes of their text, so a document that was rewritten or cut has another length.
        found = np.diff(np.cumsum([0, *self._entry_lengths[ids]])[offsets])
        expected = pc.binary_length(text).to_numpy(zero_copy_only=False)
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


def _encode_parts(
    encode: Callable[[pa.LargeStringArray], Tokens],
    text: pa.LargeStringArray,
    most: int,
) -> Tokens:
    """Encode documents with a tokenizer in parts of at most `most` bytes, or of one document."""
    import numpy as np
    import pyarrow.compute as pc

    from pipeline.arrow_arrays import split_by_size

    if text.nbytes <= most:
        return encode(text)
    sizes = pc.binary_length(text).to_numpy(zero_copy_only=False)
    parts = [encode(text.slice(first, last - first)) for first, last in split_by_size(sizes, most)]
    offsets = np.cumsum(np.concatenate([[0], *(np.diff(own) for _, own in parts)]), dtype=np.int64)
    # Each part is let go as soon as it is copied: the ids of a long document are not in memory twice.
    ids = np.empty(int(offsets[-1]), np.uint32)
    end = len(ids)
    while parts:
        own, _ = parts.pop()
        ids[end - len(own) : end] = own
        end -= len(own)
    return ids, offsets


def _load_fast(described: str, expected: dict[str, list[int]]) -> tuple[Any, str]:
    """Return gigatoken's encoder if it encodes the probes as the tokenizer does; else None and the reason."""
    import gigatoken

    try:
        fast = gigatoken.Tokenizer.from_json(described)
    except (ValueError, RuntimeError) as error:
        return None, f"gigatoken cannot run it ({str(error).partition(chr(10))[0]})"
    for probe, ids in expected.items():
        if _encode_fast(fast, _wrap(probe))[0].tolist() != ids:
            return None, f"gigatoken encodes {probe!r} differently from `tokenizers`"
    return fast, ""


def _describe_for_gigatoken(tokenizer: dict[str, Any], plain: str) -> str:
    """Return the tokenizer.json that gigatoken, the fast encoder, loads: the plain one, unless entries need a name.

    gigatoken takes characters that spell no byte for text, and would give the id of an added token `\\n` to the text of
    the entry `Ċ`. Such entries have names here that begin with the byte 0xFF, which no text holds.
    """
    names = {text: f"\xff{index}" for text, index in find_without_bytes(tokenizer).items()}
    return json.dumps(rename_entries(make_plain(tokenizer), names)) if names else plain


def _encode_fast(fast: Any, text: pa.LargeStringArray) -> Tokens:
    import awkward as ak
    import numpy as np

    layout: Any = fast.encode_batch(ak.from_arrow(text), parallel=False).layout
    return np.asarray(layout.content.data), np.asarray(layout.offsets)


def _wrap(text: str) -> pa.LargeStringArray:
    import pyarrow as pa

    from pipeline.arrow_arrays import wrap_texts

    return wrap_texts(pa.large_string(), [text.encode()])


@functools.lru_cache(maxsize=2)
def load_encoder(path: str, sha256: str, task: str | None = None) -> Encoder:
    """Return the encoder of a `tokenizer.json`; it is made once per process.

    Args:
        path: the file.
        sha256: the SHA-256 that it must have.
        task: the address of the folder of the task that trained it; None if the recipe names the file.

    Raises:
        TokenizerError: as for `Encoder`, or the file has changed.
        WorkFileDamagedError: it is a task's output and has changed.
    """
    name = Path(path).name
    text = Path(path).read_bytes() if task is None else bytes(TaskOutput(open_store(task)).read(name))
    if hashlib.sha256(text).hexdigest() != sha256:
        raise TokenizerError(f"{path}: changed while the build ran. Restore it, or run the same command again.")
    try:
        return Encoder(json.loads(text))
    except TokenizerError as error:
        raise TokenizerError(f"{path}: {error}") from error

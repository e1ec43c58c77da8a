"""A `tokenizer.json` as it is written: its entries, spelling and special tokens, and what the tokenizer keeps of text.

Three ways of spelling are read. *Byte-level*: an entry is written in the 256 characters of `byte_characters`, one for
each byte. *Metaspace*, as SentencePiece writes it: an entry is text, in which `▁` is a space; with `byte_fallback`
entries such as `<0x0A>` are bytes. *Unigram* vocabularies, with their scores, are spelt in one of these ways too.
In all of them an entry has fixed bytes, so that the text of tokens is their bytes, joined.
"""

import contextlib
import copy
import functools
import json
import os
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

from shards.errors import InputError
from shards.stores.parse import load_json

Keeps = Literal["bytes", "normalized", "words"]
"""How much of a document its tokens keep: every byte; the text that the normalizer makes of it; or the words of that
text, without the white space between them."""

Part = dict[str, Any]
"""A parsed `tokenizer.json`, or an object in it."""

MAX_ENTRY_CHARACTERS = 1 << 16
"""An entry with more is refused: it takes many times its length where entries are decoded. Real ones reach 1,000."""

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
"""How pre-tokenizers other than GPT-2's divide text into words, by the names that recipes have for them."""

_BYTE_ENTRY = re.compile(r"<0x([0-9A-F]{2})>")
_KEEP_ALL = {"ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "UnicodeScripts", "FixedLength"}
"""Pre-tokenizers that lose no character, if their behaviour is not to remove some."""


@functools.cache
def byte_characters() -> tuple[str, ...]:
    """Return the character with which a `tokenizer.json` writes each byte, by byte value.

    Source: `bytes_to_unicode` in the GPT-2 release: printable Latin-1 represents itself, the rest is U+0100 and up.
    """
    # Every byte needs a visible character.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in printable else chr(next(others)) for byte in range(256))


_BYTE_VALUES = {character: byte for byte, character in enumerate(byte_characters())}


@dataclass(frozen=True)
class Spelling:
    """How a tokenizer's entries spell text, and what it keeps of text.

    Attributes:
        space: the character that spells a space, such as `▁`; empty in a byte-level vocabulary.
        byte_fallback: whether entries such as `<0x0A>` are bytes.
        prefix: the text that the tokenizer may put before a document: a space, or nothing.
        keeps: what the tokens of a document keep of it.
        unknown: the id of all that the vocabulary does not have; None if it has everything.
    """

    space: str
    byte_fallback: bool
    prefix: bytes
    keeps: Keeps
    unknown: int | None

    def decode_entry(self, text: str) -> bytes:
        """Return the bytes of an entry of a `tokenizer.json`, by its spelling.

        Raises:
            ValueError: the entry is not in the byte-level alphabet.
        """
        # Bytes outside the vocabulary are entries of their own.
        if self.byte_fallback and (match := _BYTE_ENTRY.fullmatch(text)):
            return bytes([int(match[1], 16)])
        # SentencePiece: text, with a visible space.
        if self.space:
            return text.replace(self.space, " ").encode()
        try:
            return bytes(_BYTE_VALUES[character] for character in text)
        except KeyError as error:
            raise ValueError(
                f"tokenizer: entry {text!r} holds {error.args[0]!r}; expected characters of the byte-level alphabet, "
                "or a Metaspace pre-tokenizer. Use a byte-level or SentencePiece-style tokenizer."
            ) from error


@dataclass(frozen=True)
class TokenizerFile:
    """The entries of a tokenizer.json as they are written, text to id.

    Attributes:
        vocabulary: the entries of the model.
        added: the added tokens, in plain text.
        special: the added tokens that are marked as special.
        spelling: how the model's entries spell text.
    """

    vocabulary: dict[str, int]
    added: dict[str, int]
    special: dict[str, int]
    spelling: Spelling

    @property
    def size(self) -> int:
        """The size of a `tokenizer.json`'s whole vocabulary: one more than the largest id."""
        return max([*self.vocabulary.values(), *self.added.values()], default=-1) + 1


def list_added(tokenizer: Part) -> list[Part]:
    """Return the added tokens of a parsed tokenizer.json, special and others."""
    return tokenizer.get("added_tokens") or []


def find_special(tokenizer: Part) -> dict[str, int]:
    """Return the special tokens of a parsed tokenizer.json, text to id."""
    return {token["content"]: token["id"] for token in list_added(tokenizer) if token.get("special")}


def find_entries(tokenizer: Part) -> dict[str, int]:
    """Return the entries of the model of a parsed tokenizer.json, text to id; a Unigram's are listed with scores."""
    vocabulary: Any = tokenizer["model"]["vocab"]
    if tokenizer["model"].get("type") == "Unigram":
        return {entry: index for index, (entry, _) in enumerate(vocabulary)}
    return vocabulary


def find_twins(entries: dict[str, int]) -> str:
    """Return which two entries have one id, in words; empty if none have."""
    texts: dict[int, str] = {}
    for text, token in entries.items():
        if (other := texts.setdefault(token, text)) != text:
            return f"entries {other!r:.200} and {text!r:.200} have one id, {token}"
    return ""


def find_without_bytes(tokenizer: Part) -> dict[str, int]:
    """Return the added tokens, text to id, that are entries of a byte-level model and spell no bytes."""
    entries, alphabet = find_entries(tokenizer), set(byte_characters()) if is_byte_level(tokenizer) else None
    texts = [token["content"] for token in list_added(tokenizer)]
    return {text: entries[text] for text in texts if alphabet and text in entries and set(text) - alphabet}


def rename_entries(tokenizer: Part, names: dict[str, str]) -> Part:
    """Return a parsed tokenizer.json with other texts of some entries of its model."""
    if not names:
        return tokenizer
    old: Any = tokenizer["model"]["vocab"]
    if isinstance(old, dict):
        new: Any = {names.get(text, text): index for text, index in find_entries(tokenizer).items()}
    else:
        new = [[names.get(text, text), score] for text, score in old]
    return tokenizer | {"model": tokenizer["model"] | {"vocab": new}}


def describe_error(error: Exception) -> str:
    """Return what is wrong with a tokenizer.json, of the error with which reading it failed."""
    if isinstance(error, KeyError):
        return f"the key {error} is missing"
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 (byte {error.start:,})"
    if isinstance(error, ValueError):
        return str(error)
    return "nested too deeply" if isinstance(error, RecursionError) else "a value is not of the type of such files"


def parse_tokenizer(data: bytes) -> TokenizerFile:
    """Parse a tokenizer.json.

    Raises:
        ValueError: the data is not JSON or does not describe a BPE or Unigram, or an entry has no text, no id >= 0, or
            the id of another.
    """
    try:
        root: Any = load_json(data)
        # Everything that a hostile file can lack is inside the try.
        kind = root["model"].get("type", "BPE")  # files of the first versions have no type
        vocabulary: Any = find_entries(root) if kind in ("BPE", "Unigram") else None
        if not isinstance(vocabulary, dict):
            raise ValueError(
                f"model.type {kind!r} with a vocab that is a {type(root['model'].get('vocab')).__name__}; expected a "
                "'BPE' with an object of texts and ids, or a 'Unigram'"
            )
        added: Any = {token["content"]: token["id"] for token in list_added(root)}
        special = find_special(root)
        spelling = find_spelling(root)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a tokenizer file: {describe_error(error)}") from error
    # Ids become places in a table: none may be negative, or a float.
    for mapping in cast("tuple[dict[Any, Any], ...]", (vocabulary, added)):
        for text, token in mapping.items():
            if not isinstance(text, str) or type(token) is not int or token < 0:
                raise ValueError(f"entry {text!r:.200} has the id {token!r:.80}; expected a whole number >= 0")
            if len(text) > MAX_ENTRY_CHARACTERS:
                raise ValueError(
                    f"entry {token} has {len(text):,} characters; expected at most {MAX_ENTRY_CHARACTERS:,}"
                )
    if twins := find_twins(cast("dict[str, int]", vocabulary)):
        raise ValueError(f"{twins}; expected one text an id")
    read = TokenizerFile(cast("dict[str, int]", vocabulary), cast("dict[str, int]", added), special, spelling)
    if (unknown := spelling.unknown) is not None and (type(unknown) is not int or not 0 <= unknown < read.size):
        raise ValueError(f"model.unk_id is {unknown!r:.80}; expected the id of an entry")
    return read


@contextlib.contextmanager
def hold_output(*streams: int) -> Generator[int]:
    """Hold what is written to file descriptors while the body runs; yield that of the file in memory which has it.

    Native code writes to them by itself, and neither Rust's panics nor gigatoken's progress have a switch.
    """
    held, saved = os.memfd_create("held"), [os.dup(stream) for stream in streams]
    try:
        for stream in streams:
            os.dup2(held, stream)
        yield held
    finally:
        for stream, copy in zip(streams, saved, strict=True):
            os.dup2(copy, stream)
            os.close(copy)
        os.close(held)


def run_tokenizers(tokenizer: Part, where: str, encode: Callable[..., Any], text: Any, **options: bool) -> Any:
    """Return what `tokenizers` makes of a text, or of several, with the patterns of a parsed tokenizer.json.

    Args:
        tokenizer: the parsed file.
        where: begins the message of an error.
        encode: called with the text and the options.
        text: a string, or a list.
        options: of `encode`.

    Raises:
        InputError: a pattern takes too many steps.
    """
    others = b""  # what was written meanwhile, but for the panic's own lines
    try:
        with hold_output(2) as held:
            try:
                return encode(text, **options)
            except BaseException as error:  # a panic of Rust is no Exception
                if type(error).__name__ != "PanicException":
                    raise
                os.truncate(held, 0)
                whole = "".join(text)
                patterns = re.findall(r'"Regex": ("(?:[^"\\]|\\.)*")', json.dumps(tokenizer))
                raise InputError(
                    f"{where}`tokenizers` cannot encode a text of {len(whole.encode()):,} bytes: {error}. It begins "
                    f"with {whole[:80]!r}. The tokenizer's patterns are {', '.join(patterns) or 'none'}. Correct the "
                    "one that tries too many ways to match, or leave the document out."
                ) from error
            finally:
                others = os.pread(held, 1 << 16, 0)
    finally:
        with contextlib.suppress(OSError):  # whoever read it has gone
            os.write(2, others)


def find_spelling(tokenizer: Part) -> Spelling:
    """Return how a parsed tokenizer.json spells text. A model without any sign of another way is byte-level."""
    model: Part = tokenizer["model"]
    normalizers = list(list_parts(tokenizer.get("normalizer"), "normalizers"))
    splitters = list(list_parts(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    # A visible space is spelt by a pre-tokenizer (Metaspace), or by a normalizer that replaces spaces.
    metaspaces = [part for part in splitters if part.get("type") == "Metaspace"]
    marks = [part.get("replacement", "\u2581") for part in metaspaces]
    marks += [part.get("content") for part in normalizers if _pattern(part) == " "]
    space = str(marks[0]) if marks and not is_byte_level(tokenizer) else ""
    prepends = [part for part in normalizers if part.get("type") == "Prepend" and part.get("prepend") == space]
    # What else the normalizers do changes the text.
    rewriting = any(not (space and (_pattern(part) == " " or part in prepends)) for part in normalizers)
    # A space before the document may come from either of them, too.
    prefixed = prepends or any(
        part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never") != "never"
        for part in metaspaces
    )
    # Without normalizers and visible spaces every byte comes back.
    keeps: Keeps = "bytes" if not rewriting and not space else "normalized"
    losing = any(part.get("type") not in _KEEP_ALL or part.get("behavior") == "Removed" for part in splitters)
    if keeps == "normalized" and losing:
        keeps = "words"
    byte_fallback = bool(model.get("byte_fallback"))
    # Text outside the vocabulary becomes the unknown token, unless the vocabulary has all 256 bytes.
    entries, unknown = find_entries(tokenizer), None
    bytes_as = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else byte_characters()
    if (space and not byte_fallback) or not all(text in entries for text in bytes_as):
        unigram = model.get("type") == "Unigram"
        unknown = model.get("unk_id") if unigram else entries.get(model.get("unk_token") or "")
    return Spelling(space, byte_fallback, b" " if space and prefixed else b"", keeps, unknown)


def is_byte_level(tokenizer: Part) -> bool:
    """Return whether a parsed tokenizer.json has a pre-tokenizer that turns text into the byte-level alphabet."""
    splitters = list_parts(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return any(part.get("type") == "ByteLevel" for part in splitters)


def list_parts(section: Part | None, key: str) -> Iterator[Part]:
    """Yield the parts of a normalizer (`key` is `normalizers`) or pre-tokenizer of a parsed `tokenizer.json`."""
    if section and section.get("type") == "Sequence":
        for part in section[key]:
            yield from list_parts(part, key)
    elif section:
        yield section


def find_pretokenizer(tokenizer: Part) -> str | None:
    """Return the pre-tokenizer of a parsed byte-level `tokenizer.json`: `gpt2`, a name of `PATTERNS`, or None."""
    *splits, last = [*list_parts(tokenizer.get("pre_tokenizer"), "pretokenizers")] or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True) or tokenizer.get("normalizer"):
        return None
    if last.get("use_regex", True):
        return "gpt2" if not splits else None
    given = [(part.get("behavior"), table.get("Regex")) for part in splits if (table := part.get("pattern"))]
    return next((name for name, pattern in PATTERNS.items() if given == [("Isolated", pattern)]), None)


def make_plain(tokenizer: Part) -> Part:
    """Return a parsed `tokenizer.json` that takes text as data: what the ids of a set are compared with.

    It has no added tokens, which would match inside documents, no truncation, padding and post-processor. A Unigram's
    special tokens are entries like others, which text would match: a pre-tokenizer splits text that spells one.
    """
    off: Part = {"truncation": None, "padding": None, "post_processor": None, "added_tokens": []}
    return _guard_special(tokenizer) | off


def without_prefix(tokenizer: Part) -> Part:
    """Return a parsed tokenizer.json that puts no space before a text: pieces of a conversation follow a token."""
    splitter = copy.deepcopy(tokenizer.get("pre_tokenizer"))
    for part in list_parts(splitter, "pretokenizers"):
        if part.get("type") == "Metaspace":
            part["prepend_scheme"] = "never"
    return tokenizer | {"pre_tokenizer": splitter}


def make_set_tokenizer(tokenizer: Part, bos: str | None) -> Part:
    """Return the parsed `tokenizer.json` of a set, from the one that it is built with: it gives the ids of training.

    Special tokens are its only added tokens: `tokenizers` matches them in text unless `encode_special_tokens` is set.
    Other added tokens have no text any more; those that are no entries of the model, or have no bytes there, leave a
    special token, since the ids of later ones count them. A post-processor begins text with BOS, if documents do, and
    adds nothing else.

    Args:
        tokenizer: parsed. The result stays as it is if this is applied again.
        bos: the special token that begins documents; None if none does.
    """
    entries, without_bytes = find_entries(tokenizer), find_without_bytes(tokenizer)
    added, names = list[Part](), dict[str, str]()
    for token in list_added(tokenizer):
        text, unused = token["content"], f"<|unused_{token['id']}|>"
        if token.get("special"):
            added.append(token)
        elif text not in entries or text in without_bytes:
            added.append(token | {"content": unused, "special": True, "normalized": False})
            names |= {text: unused} if text in entries else {}
    own: Part = rename_entries(_guard_special(tokenizer), names) | {
        "truncation": None,
        "padding": None,
        "added_tokens": added,
    }
    if bos is not None:
        begin, ids = {"SpecialToken": {"id": bos, "type_id": 0}}, [find_special(tokenizer)[bos]]
        text, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
        own["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [begin, text],
            "pair": [begin, text, begin, second],
            "special_tokens": {bos: {"id": bos, "ids": ids, "tokens": [bos]}},
        }
    elif any(part.get("type") != "ByteLevel" for part in list_parts(own.get("post_processor"), "processors")):
        own["post_processor"] = None  # `ByteLevel` adds no token
    return own


def _guard_special(tokenizer: Part) -> Part:
    """Return a parsed Unigram tokenizer.json that splits text which spells a special token after one character.

    Such an entry can have no other text: `tokenizers` finds the ids of special tokens by it. Others stay as they are.
    """
    model = tokenizer["model"]
    if model.get("type") != "Unigram":
        return tokenizer
    marks = {*find_special(tokenizer).values(), model.get("unk_id")}
    texts = sorted(text for index, (text, _) in enumerate(model["vocab"]) if index in marks and len(text) > 1)
    if not texts:
        return tokenizer
    pattern = "|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in texts)
    guard = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    parts = list(list_parts(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    if parts[-1:] == [guard]:
        return tokenizer
    return tokenizer | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*parts, guard]}}


def _pattern(part: Part) -> str | None:
    pattern = part.get("pattern")
    return cast("Part", pattern).get("String") if isinstance(pattern, dict) else None

"""The normal form in which words of items and documents are compared: what typesetting and encoding change is undone.

- HTML entities are the characters that they stand for.
- Characters are taken apart by Unicode's NFKD, which full-width forms, ligatures and composed letters do not survive,
  and are made small.
- Format characters, such as soft hyphens and zero-width spaces, are left out, and so are accents: all marks that NFKD
  may move, and thus the order of marks makes no difference.
- Everything but letters, digits and the vowel signs of scripts becomes a gap: punctuation, white space, currency and
  other symbols.

A word is a run of letters and digits in it; everything else separates words. In scripts without spaces, a word begins
at each letter, and has as many letters with their marks as `_SCRIPTS` says, also across gaps: punctuation and line
breaks move. Such words overlap, and are the same wherever a copy begins.

Words are known by their hashes: those of n-grams are polynomials modulo 2^64, and two given n-grams collide with a
probability of about 2^-64.

Only words that hold something to be replaced are made again. Characters are looked up in tables, without Python code
for each; an entity costs 1 us. Memory: 6 MB for the tables of a process.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from pipeline.arrow_arrays import spread

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Bools, Int32s, Int64s, UInt8s, UInt64s

UNICODE_VERSION = unicodedata.unidata_version
"""Another version of Unicode may have other letters."""

GAP = b"\0"
_ENTITY = re.compile(rb"&(?:amp;)*(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_NESTED = 3
"""An entity may have been escaped again: `&amp;amp;nbsp;`."""
_APOSTROPHES = range(0x2B9, 0x2C0)
"""Letters to Unicode, which stand for apostrophes in text."""
_IGNORED = {0x34F, 0x115F, 0x1160, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)} | set(
    range(0xE0100, 0xE01F0)
)
"""Characters without a shape of their own that are not format characters to Unicode: fillers, variation selectors."""

_ASCII = bytes(
    byte + 32 if 0x41 <= byte <= 0x5A else byte if byte >= 0x80 or chr(byte).isalnum() else 0 for byte in range(256)
)
"""The byte that stands for a byte: capitals of ASCII are small, and its letters and digits stay; all else is a gap."""

_SIZES = ((2, 0xC0, 0xE0), (3, 0xE0, 0xF0), (4, 0xF0, 0x100))
"""Bytes of a character outside ASCII, the lowest first byte, and one past the highest."""
_SCRIPTS = {
    2: ((0x3005, 0x3008), (0x3105, 0x3130), (0x3400, 0xA000), (0xF900, 0xFB00), (0x20000, 0x33480)),  # Chinese
    3: ((0x3041, 0x3100), (0x31F0, 0x3200), (0x1AFF0, 0x1B170)),  # kana
    # Thai, Lao, Burmese, Khmer; those of the Tai, Bali and Java.
    5: (
        (0xE00, 0xF00),
        (0x1000, 0x10A0),
        (0x1780, 0x1800),
        (0x1950, 0x19E0),
        (0x1A20, 0x1AB0),
        (0x1B00, 0x1B80),
        (0xA980, 0xAA00),
        (0xAA60, 0xAAE0),
    ),
}
"""Letters of a word in scripts without spaces, and the ranges of the scripts' characters.

All characters have three bytes or more. Why these numbers: 5-grams of such words have 6 to 9 letters, about as rare in
text as five English words; with more letters, items with a changed one would be missed.
"""
_MARK = 1
"""In the table of letters: belongs to the letter before it."""
_STAYS, _GAP, _REPLACED = 1, 2, 3
"""Kinds of characters: one that stays, one that is a gap, and the first replacement. 0 is not yet known."""


class _Characters:
    """The normal form of every character, found when it first occurs."""

    def __init__(self) -> None:
        self._kinds = np.zeros(0x110000, np.int32)
        self._numbers: dict[bytes, int] = {}
        self._replacements: list[bytes] = []
        self._sizes, self._begins = np.zeros((2, 0), np.int64)
        self._pool = np.zeros(0, np.uint8)

    def find_kinds(self, characters: Int64s) -> Int32s:
        """Return what the normal form makes of characters: they stay, are gaps, or the number of a replacement."""
        kinds = self._kinds[characters]
        if not kinds.all():
            for character in np.unique(characters[kinds == 0]).tolist():
                text = normalise_character(chr(character))
                stays = text == chr(character).encode("utf-8", "surrogatepass")
                self._kinds[character] = _STAYS if stays else _GAP if text == GAP else self.number(text)
            kinds = self._kinds[characters]
        return kinds

    def number(self, text: bytes) -> int:
        """Return the number of what the normal form writes for characters."""
        if text not in self._numbers:
            self._numbers[text] = len(self._replacements) + _REPLACED
            self._replacements.append(text)
        return self._numbers[text]

    def join(self, kinds: Int64s) -> tuple[Int64s, UInt8s]:
        """Return the sizes of the normal form's replacements, `(replacements,)`, and their bytes, end to end."""
        if len(self._sizes) != len(self._replacements):
            self._sizes = np.array([len(text) for text in self._replacements], np.int64)
            self._begins = np.cumsum(self._sizes) - self._sizes
            self._pool = np.frombuffer(b"".join(self._replacements), np.uint8)
        sizes = self._sizes[kinds - _REPLACED]
        return sizes, self._pool[spread(self._begins[kinds - _REPLACED], sizes)]


_characters = lru_cache(maxsize=1)(_Characters)


@lru_cache(maxsize=1)
def _letters() -> UInt8s:
    """Return for each character of a script without spaces how many letters make a word, or `_MARK`; 0 for others."""
    table = np.zeros(0x110000, np.uint8)
    for letters, ranges in _SCRIPTS.items():
        for first, past in ranges:
            table[first:past] = letters
            # A sign that is composed of a mark and a letter goes on with the letter before it, too.
            for character in range(first, past) if letters == max(_SCRIPTS) else ():
                start = normalise_character(chr(character)).decode()[:1]
                if not start or unicodedata.category(start)[0] == "M":
                    table[character] = _MARK
    return table


@lru_cache(maxsize=1)
def _unspaced_leads() -> Bools:
    """Return which two bytes, the first being the higher, may begin a character of a script without spaces."""
    likely = np.zeros(0x10000, bool)
    (characters,) = np.nonzero(_letters()[:0x10000])
    likely[0xE080 + (characters >> 12 << 8) + (characters >> 6 & 0x3F)] = True
    likely[0xF000:] = True  # all of four bytes
    return likely


def _find_characters(data: UInt8s, leads: Int64s) -> Iterator[tuple[int, Int64s, Int64s]]:
    """Yield the characters outside ASCII, for their normal form: their size, first bytes and code points."""
    for size, lowest, highest in _SIZES if len(leads) else ():
        at = leads[(data[leads] >= lowest) & (data[leads] < highest) & (leads + size <= len(data))]
        characters = data[at].astype(np.int64) - lowest
        for place in range(1, size):
            characters = characters << 6 | (data[at + place] & 0x3F)
        yield size, at, characters


def _find_edits(data: UInt8s, offsets: Int64s) -> tuple[UInt8s, Int64s]:
    """Begin the normal form: make letters small, clear all gaps, and find what must be replaced.

    Args:
        data: their UTF-8, `(bytes,)`; the last character may be cut.
        offsets: where each document begins in it, and where the last one ends, `(documents + 1,)`.

    Returns:
        The text, 0 for each byte of a gap, but for none of what must be replaced; and that, in the order of the text,
        the characters and HTML entities that other characters, or none, replace: first byte, size in bytes and number
        of the replacement, `(edits, 3)`.
    """
    text = data.tobytes()
    small = np.frombuffer(bytearray(text.translate(_ASCII)), np.uint8)
    # Entities first: what they stand for is no text of the document.
    entities = _find_entities(text, offsets)
    small[spread(entities[:, 0], entities[:, 1])] = 1
    parts = [entities]
    for size, at, characters in _find_characters(data, np.flatnonzero(data >= 0xC0)):
        # Most characters stay; gaps are cleared here, and the others are replaced later.
        kinds = _characters().find_kinds(characters)
        gaps, replaced = at[kinds == _GAP], kinds >= _REPLACED
        for place in range(size):
            small[gaps + place] = 0
        parts.append(np.stack([at[replaced], np.full(int(replaced.sum()), size), kinds[replaced]], axis=1))
    found = np.concatenate(parts)
    return small, found[np.argsort(found[:, 0], kind="stable")]


def _apply_edits(data: UInt8s, edits: Int64s) -> tuple[UInt8s, Int64s]:
    """Replace in a text what its normal form replaces.

    Args:
        data: the text, `(bytes,)`.
        edits: what `_find_edits` has found, by its place in `data`, `(edits, 3)`.

    Returns:
        The normal form, and how many bytes of it each byte of `data` gives, `(bytes,)`: all bytes of a replacement
        come from the first byte of what it replaces.
    """
    starts, sizes, kinds = edits.T
    lengths, replacements = _characters().join(kinds)
    # How many bytes each byte gives: none inside what is replaced, all of the replacement at its first.
    counts = np.ones(len(data), np.int64)
    counts[spread(starts, sizes)] = 0
    counts[starts] = lengths
    normal = np.repeat(data, counts)
    normal[spread(np.cumsum(counts)[starts] - lengths, lengths)] = replacements
    return normal, counts


def _find_entities(text: bytes, offsets: Int64s) -> Int64s:
    """Return the HTML entities that the normal form replaces: first byte, size and kind, `(entities, 3)`."""
    if b"&" not in text:
        return np.zeros((0, 3), np.int64)
    found: list[tuple[int, int, int]] = []
    for match in _ENTITY.finditer(text):
        normal = _normalise_entity(match[0])
        if normal is not None:
            found.append((match.start(), match.end() - match.start(), _characters().number(normal)))
    entities = np.array(found, np.int64).reshape(-1, 3)
    first, last = entities[:, 0], entities[:, 0] + entities[:, 1] - 1
    return entities[offsets.searchsorted(first, "right") == offsets.searchsorted(last, "right")]  # of one document


@lru_cache(maxsize=4096)
def _normalise_entity(entity: bytes) -> bytes | None:
    """Return the normal form of what an entity stands for; None if it is none."""
    text = given = entity.decode()
    for _ in range(_NESTED):
        text = html.unescape(text)
    if text == given:
        return None
    return b"".join(_ASCII[ord(one) : ord(one) + 1] if one.isascii() else normalise_character(one) for one in text)


def normalise_character(character: str) -> bytes:
    """Return the normal form of a character outside ASCII: UTF-8, with `GAP` in place of what is no letter or digit."""
    if unicodedata.category(character)[0] == "S" and unicodedata.decomposition(character).startswith("<super>"):
        return GAP  # a trade mark's sign is not part of the word before it
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    normal = b"".join(map(_normalise_part, text))
    return normal if normal.strip(GAP) else normal[:1]


def _normalise_part(character: str) -> bytes:
    """Return the normal form of a character that NFKD leaves as it is."""
    category = unicodedata.category(character)
    if category in ("Cf", "Me") or unicodedata.combining(character) or ord(character) in _IGNORED:
        return b""
    if category[0] in "LNM" and ord(character) not in _APOSTROPHES:
        return character.encode()
    return GAP


_WORD_BASE = np.uint64(0x9E3779B97F4A7C15)
_NGRAM_BASE = np.uint64(0xD1B54A32D192ED03)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
"""The first multiplier of splitmix64's finaliser. Source: Steele, Lea and Flood 2014."""
_CHUNK_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
"""The bytes of a word in a number of 8 bytes, by how many there are."""
_LONG_WORD_BYTES = 512
"""Longer words, such as encoded images, are hashed one by one."""


def find_hashed_words(data: UInt8s, offsets: Int64s) -> tuple[UInt64s, Int64s, UInt8s]:
    """Find the words of documents in normal form, hashed; none goes on from one document to the next.

    Args:
        data: their UTF-8, `(bytes,)`.
        offsets: where each document begins in it, and where the last one ends, `(documents + 1,)`.

    Returns:
        Hash of each word, uint64 `(words,)`; its first byte and the one behind its last, int64 `(words, 2)`, neither
        ever less than that of the word before; and its letters, uint8 `(words,)`: 1 unless its script has no spaces,
        as the next word begins at its second.
    """
    small, edits = _find_edits(data, offsets)
    starts, stops, letters = _find_runs(small, offsets, edits)
    hashes = _hash_words(small, starts, stops - starts)
    if not len(edits):
        return _join_letters(hashes, np.stack([starts, stops], axis=1), letters, offsets)
    # Only the words that hold what is replaced are made again; there may be several of one, or none.
    owner = starts.searchsorted(edits[:, 0], "right") - 1
    edited = owner[np.append(True, owner[1:] != owner[:-1])]
    sizes = (stops - starts)[edited]
    ends = np.cumsum(sizes)
    given = spread(starts[edited], sizes)
    shift = starts[edited] - (ends - sizes)
    moved = edits.copy()
    moved[:, 0] -= shift[np.searchsorted(edited, owner)]
    normal, counts = _apply_edits(small[given], moved)
    firsts, lasts, again = _find_runs(normal, np.append(0, np.cumsum(counts)[ends - 1]), edits[:0])
    origins = np.repeat(given, counts)
    places = np.stack([origins[firsts], origins[lasts - 1] + 1], axis=1)
    ends_at = origins[lasts - 1]
    at = np.minimum(edits[:, 0].searchsorted(ends_at), len(edits) - 1)
    places[:, 1] += np.where(edits[at, 0] == ends_at, edits[at, 1] - 1, 0)
    # Put them in place of the others.
    plain = np.ones(len(starts), bool)
    plain[edited] = False
    starts, stops, hashes = starts[plain], stops[plain], hashes[plain]
    before = starts.searchsorted(places[:, 0])
    hashes = np.insert(hashes, before, _hash_words(normal, firsts, lasts - firsts))
    places = np.stack([np.insert(starts, before, places[:, 0]), np.insert(stops, before, places[:, 1])], axis=1)
    return _join_letters(hashes, places, np.insert(letters[plain], before, again), offsets)


def _find_runs(data: UInt8s, offsets: Int64s, edits: Int64s) -> tuple[Int64s, Int64s, UInt8s]:
    """Return where words in normal form begin and end: runs of bytes that are not 0, each within a document.

    In scripts without spaces, each letter begins a run. The third array has the letters of a word of its script; 1 for
    other runs. At what is in `edits`, only such letters do: the others may become nothing, or marks.
    """
    # Edges of runs: a byte that is inside, next to one that is not.
    inside = data != 0
    begins, ends = np.zeros(len(data) + 1, bool), np.zeros(len(data) + 1, bool)
    begins[:-1] = ends[1:] = inside
    begins[1:-1] &= ~inside[:-1]
    ends[1:-1] &= ~inside[1:]
    edges = offsets[(offsets > 0) & (offsets < len(data))]
    begins[edges], ends[edges] = inside[edges], inside[edges - 1]
    leads = np.flatnonzero(data[:-1] >= 0xE0)
    leads = leads[_unspaced_leads()[data[leads].astype(np.int64) << 8 | data[leads + 1]]]
    if not len(leads):
        starts = np.flatnonzero(begins)
        return starts, np.flatnonzero(ends), np.ones(len(starts), np.uint8)
    letters = np.zeros(len(data), np.uint8)
    for size, at, characters in _find_characters(data, leads):
        own = _letters()[characters]
        for place in range(size):
            letters[at + place] = _MARK * (own > 0)
        letters[at] = own
    edited = spread(edits[:, 0], edits[:, 1])
    letters[edited[letters[edited] == _MARK]] = 0
    # A letter begins a run, and so does what is of another script and follows one.
    begins[:-1] |= letters > _MARK
    follows = inside[1:] & (letters[1:] == 0) & (letters[:-1] > 0)
    follows[edited[edited > 0] - 1] = False
    begins[1:-1] |= follows
    ends[1:-1] |= begins[1:-1] & inside[:-1]
    starts = np.flatnonzero(begins)
    return starts, np.flatnonzero(ends), np.maximum(letters[starts], 1)


def _join_letters(hashes: UInt64s, places: Int64s, letters: UInt8s, offsets: Int64s) -> tuple[UInt64s, Int64s, UInt8s]:
    """Make normal words of the letters of scripts without spaces: as many runs as `letters` says, from each on.

    At the end of a document, the letters that have too few behind them are left out with all that follows.
    """
    if not (letters > 1).any():
        return hashes, places, letters
    last = np.arange(len(hashes)) + letters - 1
    ends = places[:, 0].searchsorted(offsets)
    end = ends[offsets.searchsorted(places[:, 0], "right")]  # of each run's document
    kept = last < end
    (cut,) = np.nonzero(~kept)
    for place in range(1, max(_SCRIPTS)):
        kept[np.minimum(cut + place, end[cut] - 1)] = False
    joined = hashes.copy()
    for size in _SCRIPTS:
        at = np.flatnonzero(kept & (letters == size))
        joined[at] = hash_ngrams(hashes, size, at)
    stops = np.maximum.accumulate(places[np.minimum(last, end - 1), 1])
    return joined[kept], np.stack([places[:, 0], stops], axis=1)[kept], letters[kept]


def _hash_words(data: UInt8s, starts: Int64s, sizes: Int64s) -> UInt64s:
    """Return the hash of each word in normal form: of its bytes, eight at a time."""
    # Overlapping numbers of eight bytes: the bytes at a word are one look-up.
    padded = np.append(data, np.zeros(8, np.uint8))
    chunks = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))  # the 8 bytes at each byte
    hashes = _mix(chunks[starts] & _CHUNK_MASKS[np.minimum(sizes, 8)])
    left = np.flatnonzero((sizes > 8) & (sizes <= _LONG_WORD_BYTES))
    done = 8
    while len(left):
        chunk = chunks[starts[left] + done] & _CHUNK_MASKS[np.minimum(sizes[left] - done, 8)]
        hashes[left] = _mix(hashes[left] * _WORD_BASE + chunk)
        done += 8
        left = left[sizes[left] > done]
    for word in np.flatnonzero(sizes > _LONG_WORD_BYTES).tolist():
        hashes[word] = xxhash.xxh3_64_intdigest(data[starts[word] : starts[word] + sizes[word]].tobytes())
    return hashes


def hash_ngrams(words: UInt64s, size: int, begins: Int64s | None = None) -> UInt64s:
    """Hash n-grams of words in normal form; those of different sizes have different hashes.

    Args:
        words: the hashes of the words, `(words,)`.
        size: words in an n-gram.
        begins: the first word of each; all n-grams in order when None, `(max(0, words - size + 1),)`.
    """
    count = max(0, len(words) - size + 1)
    hashes = np.full(count if begins is None else len(begins), size, np.uint64)
    for place in range(size):
        hashes *= _NGRAM_BASE
        hashes += words[place : place + count] if begins is None else words[begins + place]
    return _mix(hashes)


def _mix(hashes: UInt64s) -> UInt64s:
    hashes ^= hashes >> np.uint64(30)
    hashes *= _MIX
    hashes ^= hashes >> np.uint64(31)
    return hashes

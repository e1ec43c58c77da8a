"""The normal form in which words of items and documents are compared: what typesetting and encoding change is undone.

- HTML entities are the characters that they stand for.
- Characters are taken apart by Unicode's NFKD, which full-width forms, ligatures and composed letters do not survive,
  and are made small.
- Format characters, such as soft hyphens and zero-width spaces, are left out, and so are accents: all marks that NFKD
  may move, and thus the order of marks makes no difference.
- Everything but letters, digits and the vowel signs of scripts becomes a gap: punctuation, white space, currency and
  other symbols.

A word is a run of letters and digits in it; everything else separates words. In scripts without spaces, a word begins
at each letter, and has as many letters with their marks as `SCRIPTS` says, also across gaps: punctuation and line
breaks move. Such words overlap, and are the same wherever a copy begins.

Words are known by their hashes: those of n-grams are polynomials modulo 2^64, and two given n-grams collide with a
probability of about 2^-64.

Characters outside ASCII are looked up in a table, and only those that change are replaced: up to three times as fast as
`str.translate` of whole texts, measured. Memory: 2 MB for the tables of a process.
"""

import html
import re
import unicodedata
from functools import cache, lru_cache

import numpy as np
import xxhash

from pipeline.arrow_arrays import spread
from shards.format.arrays import Int64s, UInt8s, UInt32s, UInt64s

UNICODE_VERSION = unicodedata.unidata_version
"""Another version of Unicode may have other letters."""

GAP = b"\0"
DOCUMENT_END = b"\xff"
"""Stands between documents: a byte that no UTF-8 has."""
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
_ONE_BYTE = bytes(range(0x80)) + DOCUMENT_END
"""The bytes that belong to no character outside ASCII."""
SCRIPTS = {
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
_STAYS, _GAP, _CHANGES = 1, 2, 3
"""What the normal form does to a character; 0 is not yet known."""
_changes = np.zeros(0x110000, np.uint8)


@cache
def _letters() -> UInt8s:
    """Return for each character of a script without spaces how many letters make a word, or `_MARK`; 0 for others."""
    table = np.zeros(0x110000, np.uint8)
    for letters, ranges in SCRIPTS.items():
        for first, past in ranges:
            table[first:past] = letters
            for character in range(first, past) if letters == max(SCRIPTS) else ():
                if unicodedata.category(chr(character))[0] == "M":
                    table[character] = _MARK
    return table


def find_characters(text: bytes) -> tuple[Int64s, Int64s, UInt32s]:
    """Return the characters outside ASCII: the first byte of each, one past its last, and its code point."""
    data = np.frombuffer(text, np.uint8)
    starts = np.flatnonzero((data >= 0xC0) & (data < DOCUMENT_END[0]))
    characters = np.frombuffer(text.translate(None, _ONE_BYTE).decode().encode("utf-32-le"), np.uint32)
    return starts, starts + 2 + (characters >= 0x800) + (characters >= 0x10000), characters


def normalise(text: bytes) -> tuple[bytes, Int64s]:
    """Return the normal form of documents.

    Args:
        text: their UTF-8, with `DOCUMENT_END` between them.

    Returns:
        The normal form, in which bytes `GAP` stand for what is no letter or digit; and its edits, the characters and
        HTML entities that other characters, or none, replace: the first byte of each in the text, one past its last,
        and the bytes of the replacement, `(edits, 3)`.
    """
    starts, stops, characters = find_characters(text)
    for one in np.unique(characters[_changes[characters] == 0]).tolist():
        normal = _normalise_character(one)
        is_gap = normal and not normal.strip(GAP)
        _changes[one] = _STAYS if normal == chr(one).encode() else _GAP if is_gap else _CHANGES
    changes = _changes[characters]
    # Most of what changes is punctuation: its bytes are cleared where they are.
    gaps, changed = changes == _GAP, changes == _CHANGES
    small = bytearray(text.translate(_ASCII))
    np.frombuffer(small, np.uint8)[spread(starts[gaps], stops[gaps] - starts[gaps])] = 0
    small = bytes(small)
    starts, stops = starts[changed], stops[changed]
    replacements = list(map(_normalise_character, characters[changed].tolist()))
    entities = [
        (*match.span(), normal)
        for match in _ENTITY.finditer(text)
        if (normal := _normalise_entity(match[0])) is not None
    ]
    if entities:
        firsts, ends, normals = zip(*entities, strict=True)
        starts, stops, replacements = np.append(starts, firsts), np.append(stops, ends), [*replacements, *normals]
        order = np.argsort(starts)
        starts, stops, replacements = starts[order], stops[order], [replacements[place] for place in order.tolist()]
    parts = [b""] * (2 * len(replacements) + 1)
    parts[1::2] = replacements
    between = zip([0, *stops.tolist()], [*starts.tolist(), len(text)], strict=True)
    parts[::2] = [small[start:stop] for start, stop in between]
    return b"".join(parts), np.stack([starts, stops, np.array(list(map(len, replacements)), np.int64)], axis=1)


def find_origins(starts: Int64s, stops: Int64s, edits: Int64s) -> tuple[Int64s, Int64s]:
    """Return where in the text words begin and end that are at given places of its normal form, by the edits."""
    edits = np.concatenate([np.zeros((1, 3), np.int64), edits])
    lengths = edits[:, 2]
    ends = edits[:, 1] + np.cumsum(lengths - edits[:, 1] + edits[:, 0])  # of the replacements, in the normal form

    def find(places: Int64s, column: int) -> Int64s:
        edit = np.searchsorted(ends - lengths, places, "right") - 1
        origins, inside = places - ends[edit] + edits[edit, 1] + column, places < ends[edit]
        origins[inside] = edits[edit[inside], column]
        return origins

    return find(starts, 0), find(stops - 1, 1)


@lru_cache(maxsize=4096)
def _normalise_entity(entity: bytes) -> bytes | None:
    """Return the normal form of what an entity stands for; None if it is none."""
    text = given = entity.decode()
    for _ in range(_NESTED):
        text = html.unescape(text)
    return None if text == given else b"".join(_normalise_character(ord(one)) for one in text)


@cache
def _normalise_character(code: int) -> bytes:
    """Return the normal form of a character: UTF-8, with `GAP` in place of what is no letter or digit."""
    character = chr(code)
    if unicodedata.category(character)[0] == "S" and unicodedata.decomposition(character).startswith("<super>"):
        return GAP  # a trade mark's sign is not part of the word before it
    parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return b"".join(map(_normalise_part, parts))


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


def find_hashed_words(text: bytes) -> tuple[UInt64s, Int64s, UInt8s]:
    """Find the words of documents in normal form, hashed; none goes on from one document to the next.

    Returns:
        Hash of each word, uint64 `(words,)`; its first byte and the one behind its last, int64 `(words, 2)`, neither
        ever less than that of the word before; and its letters, uint8 `(words,)`: 1 unless its script has no spaces,
        as the next word begins at its second.
    """
    data = np.frombuffer(text + DOCUMENT_END, np.uint8)
    inside = (data != GAP[0]) & (data != DOCUMENT_END[0])
    begins = inside & ~np.append(False, inside[:-1])
    # In scripts without spaces, each letter begins a run, and so does what is of another script and follows one.
    letters = np.ones(len(data), np.uint8)
    firsts, nexts, characters = find_characters(text)
    own = _letters()[characters]
    letters[firsts] = np.maximum(own, 1)
    begins[nexts[own > 0]] |= inside[nexts[own > 0]]
    begins[firsts[own == _MARK]] &= ~inside[firsts[own == _MARK] - 1]
    begins[firsts[own > _MARK]] = True
    starts = np.flatnonzero(begins)
    stops = np.flatnonzero(inside[:-1] & (begins[1:] | ~inside[1:])) + 1
    hashes, letters = _hash_words(data, starts, stops - starts), letters[starts]
    if (letters == 1).all():
        return hashes, np.stack([starts, stops], axis=1), letters
    # There, a word has as many runs as `letters` says, from each on. At the end of a document, the letters that have
    # too few behind them are left out with all that follows.
    last = np.arange(len(hashes)) + letters - 1
    edges = np.flatnonzero(data == DOCUMENT_END[0])
    end = starts.searchsorted(edges)[edges.searchsorted(starts)]  # of each run's document
    kept = last < end
    (cut,) = np.nonzero(~kept)
    for place in range(1, max(SCRIPTS)):
        kept[np.minimum(cut + place, end[cut] - 1)] = False
    joined = hashes.copy()
    for size in SCRIPTS:
        at = np.flatnonzero(kept & (letters == size))
        joined[at] = hash_ngrams(hashes, size, at)
    stops = np.maximum.accumulate(stops[np.minimum(last, end - 1)])
    return joined[kept], np.stack([starts, stops], axis=1)[kept], letters[kept]


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

"""The normal form in which documents are compared for near-duplicates, and the hashes of its shingles.

A document's tokens are spelled as text, in which each character is in Unicode's NFC and case-folded. White space only
separates words, and how much of it there is makes no difference; in scripts without spaces, each character is a word.
So the form knows nothing of line ends, wrapping, indentation, case, composed letters, or the tokenizer.

A shingle is five consecutive words. A document with fewer has one: all its words. Equal shingles have equal hashes; two
different ones of a pair of documents have the same hash about once in 2^64 / (shingles of one x of the other): for
documents of 100,000 words, once in two billion pairs.

ASCII is case-folded in the vocabulary's entries, once. Python's `unicodedata` sees the other characters that change, or
that join the one before them, with that one; the rest is compiled. Costs 5 to 8 ms per megabyte of English on one core.
Memory: 50 bytes for each byte of `PART_TOKENS` tokens, and as much of a longer stretch without white space.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean import measures
from pipeline.clean.decontamination.normal_form import SCRIPTS
from pipeline.clean.measures.names import ALONE, MOVES, SHINGLE_WORDS, WHITE
from pipeline.numba_compiler import is_to_compile
from pipeline.tokenizer.encoder import read_tokenizer
from shards.errors import check_extra
from shards.format.vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from pipeline.arrow_arrays import Int64s, Integers, UInt8s, UInt64s, UIntegers

UNICODE_VERSION = unicodedata.unidata_version
"""Another version of Unicode may fold other letters."""
PART_TOKENS = 1 << 17
"""Tokens that are spelled at once."""
_BLOCK = 8
"""Bytes in a number of an entry."""
_ASCII = bytes(
    ord(" ") if chr(byte).isspace() and byte < 0x80 else byte + 32 if 0x41 <= byte <= 0x5A else byte
    for byte in range(256)
)
"""The byte that stands for a byte: white space is a space, and capitals are small."""
_CHANGING = ((0x80, 0x3400), (0xA000, 0xAE4C), (0xF900, 0x20000), (0x2F800, 0x2FA20))
"""Where the characters are that NFC or case folding changes, or that join those before them; of Hangul's syllables, as
many as have all of its vowels and ends."""
_PUNCTUATION = ((0x3001, 0x3041), (0xFF01, 0xFFE7))
"""Signs of Chinese and Japanese, and full-width forms: no white space is between them and letters."""


class Entries:
    """The entries of a vocabulary, with ASCII in normal form; a special token is white space: it ends a document."""

    def __init__(self, vocabulary: Vocabulary):
        special = {*vocabulary.special.values()}
        entries = [
            b" " if number in special else entry.translate(_ASCII) for number, entry in enumerate(vocabulary.entries)
        ]
        self.lengths = np.array(list(map(len, entries)), np.int64)
        counts = -(-self.lengths // _BLOCK)
        self.edges = np.append(0, np.cumsum(counts))
        """Where the numbers of each entry begin, `(entries + 1,)`."""
        self.blocks = np.frombuffer(b"".join(entry + bytes(-len(entry) % _BLOCK) for entry in entries), "<u8")
        """The bytes of entries, eight to a number."""
        self.sizes = np.full(len(self.blocks), _BLOCK)
        """The bytes that each number has."""
        own = counts > 0
        self.sizes[self.edges[1:][own] - 1] = (self.lengths - _BLOCK * (counts - 1))[own]
        firsts = np.array([ord(entry[:4].decode(errors="replace")[:1] or "a") for entry in entries])
        kinds = find_kinds()[firsts]
        self.begins = (kinds == WHITE) | (kinds == ALONE)
        """Whether an entry begins with the end of a word, whatever comes before it, `(entries,)`."""


@lru_cache(maxsize=1)
def load_entries(path: str, sha256: str, task: str | None) -> Entries:
    """Return the entries of a `tokenizer.json`, given as for `read_tokenizer`; they are made once per process."""
    return Entries(read_vocabulary(read_tokenizer(path, sha256, task)))


@cache
def find_kinds() -> UInt8s:
    """Return the kind of each character, by its code point; 0 if it has none. Capitals of ASCII do not occur."""
    kinds = np.zeros(1 << 21, np.uint8)
    for first, past in (*_PUNCTUATION, *chain(*SCRIPTS.values())):
        kinds[first:past] = ALONE
    characters = [chr(code) for first, past in _CHANGING for code in range(first, past)]
    for one in characters:
        if not unicodedata.is_normalized("NFD", one):
            # What a character is composed of, its first part aside, may join what is before.
            kinds[list(map(ord, unicodedata.normalize("NFD", one)[1:]))] |= MOVES
        if one.casefold() != one or unicodedata.combining(one) or not unicodedata.is_normalized("NFC", one):
            kinds[ord(one)] |= MOVES
    for one in filter(str.isspace, [" ", *characters]):
        kinds[ord(one)] = WHITE
    return kinds


def hash_shingles(
    pieces: Iterable[UIntegers], lengths: Integers, entries: Entries
) -> Iterator[tuple[int, Int64s, Int64s, UInt64s]]:
    """Hash the shingles of documents, repeated ones included, part by part.

    Args:
        pieces: the tokens of whole documents, each with its EOS, one after the other, in arrays of any size.
        lengths: tokens of each, EOS included, `(documents,)`.
        entries: the vocabulary's.

    Yields:
        The index of a document; how many shingles of it and of those after it are in the part, `(some,)`: at least one
        of each document in all parts together; the characters of their words, `(some,)`; and the hashes of the
        shingles, document by document.
    """
    from pipeline.clean.measures.shingles import hash_words, spell  # loads compiled code

    kinds, ends = find_kinds(), np.cumsum(lengths, dtype=np.int64)
    last = np.zeros(SHINGLE_WORDS + 1, np.uint64)
    waiting: list[UIntegers] = []
    done = read = 0
    for tokens in (piece[at : at + PART_TOKENS] for piece in pieces for at in range(0, len(piece), PART_TOKENS)):
        # A part ends where a word does, or at the end of all.
        read += len(tokens)
        waiting.append(tokens)
        cut = len(tokens)
        if read < ends[-1]:
            places = np.flatnonzero(entries.begins[tokens])
            if not len(places):
                continue
            cut = int(places[-1])
        waiting[-1] = tokens[:cut]
        part, waiting = np.concatenate(waiting, dtype=np.uint32), [tokens[cut:]]
        past = done + len(part)
        first, after = np.searchsorted(ends, [done, past], "right").tolist()
        stops = np.unique(np.append(ends[first:after], past)) - done
        done = past
        # Spell it, and hash its words.
        blocks = _make_blocks(int(entries.lengths[part].sum()))
        edges = spell(part, stops, entries.blocks, entries.edges, entries.sizes, blocks)
        blocks, edges = _normalise(blocks, edges)
        hashes, sums = np.empty(int(edges[-1]) // 2 + len(edges) + 1, np.uint64), np.empty((len(edges), 2), np.int64)
        made = hash_words(blocks, edges, after - first, kinds, last, hashes, sums)
        counts, characters = sums.T
        yield first, counts, characters, hashes[:made]


def _make_blocks(size: int) -> UInt64s:
    return np.zeros(size // _BLOCK + 3, np.uint64)  # as the compiled code reads behind the end


def _normalise(blocks: UInt64s, ends: Int64s) -> tuple[UInt64s, Int64s]:
    """Return spelled documents in normal form, and one past the last byte of each."""
    from pipeline.clean.measures.shingles import find_moving

    stretches = find_moving(blocks, ends, find_kinds())
    if not len(stretches):
        return blocks, ends
    text = blocks.view(np.uint8)[: ends[-1]].tobytes()
    starts, stops = stretches.T
    old = b"\n".join([text[start:stop] for start, stop in stretches.tolist()])  # no line feed is in a text
    folded = unicodedata.normalize("NFC", old.decode(errors="surrogateescape")).casefold()
    new = unicodedata.normalize("NFC", folded).encode(errors="surrogateescape").split(b"\n")
    edges = pairwise([0, *stretches.ravel().tolist(), len(text)])
    between = [text[start:stop] for start, stop in edges][::2]
    normal = b"".join(chain(*zip(between, [*new, b""], strict=True)))
    growth = np.append(0, np.cumsum(np.array(list(map(len, new))) - (stops - starts)))
    blocks = _make_blocks(len(normal))
    blocks.view(np.uint8)[: len(normal)] = np.frombuffer(normal, np.uint8)
    return blocks, ends + growth[np.searchsorted(stops, ends, "right")]


def compile_shingles(say: Callable[[str], None]) -> None:
    """Compile what hashes shingles here, unless this machine keeps it compiled; `say` prints a line for a person.

    Raises:
        MissingExtraError: numba is not installed.
    """
    check_extra("numba")
    if is_to_compile(Path(measures.__file__).with_name("shingles.py")):
        say("compiling the search for near-duplicates, once on this machine: about 5 s")
        for _ in hash_shingles([np.zeros(1, np.uint16)], np.ones(1, np.int64), Entries(Vocabulary([b"a"], {}))):
            pass

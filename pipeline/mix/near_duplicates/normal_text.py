"""The normal form in which documents are compared for near-duplicates, and the hashes of its shingles.

A document's tokens are spelled as text, in which each character is in Unicode's NFC and case-folded. White space only
separates words, and how much of it there is makes no difference; in scripts without spaces, each character is a word.
So the form knows nothing of line ends, wrapping, indentation, case, composed letters, or the tokenizer.

A shingle is five consecutive words. A document with fewer has one: all its words. Equal shingles have equal hashes; two
different ones of a pair of documents have the same hash about once in 2^64 / (shingles of one x of the other): for
documents of 100,000 words, once in two billion pairs.

ASCII is folded in the vocabulary's entries, once. Of the other characters, `unicodedata` sees those that change, or
that join the one before them, with that one. Costs about 18 ms per megabyte of English on one core. Memory: 50 bytes
for each byte of `PART_TOKENS` tokens, or of a longer stretch without white space (in sets with conversations, without
a special token).
"""

# pyright: reportUnknownMemberType=false
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import spread, text_offsets, wrap_numbers, wrap_texts
from pipeline.clean import measures
from pipeline.clean.decontamination.normal_form import DOCUMENT_END, SCRIPTS, find_characters, hash_ngrams
from pipeline.numba_compiler import is_to_compile
from pipeline.tokenizer.chat_tokens import write_chat_tokens
from pipeline.tokenizer.encoder import read_tokenizer
from shards.errors import check_extra
from shards.format.arrays import Int64s, Integers, Tokens, UInt8s, UInt64s
from shards.format.vocabulary import Vocabulary, read_vocabulary

UNICODE_VERSION = unicodedata.unidata_version
"""Another version of Unicode may fold other letters."""
PART_TOKENS = 1 << 17
"""Tokens that are spelled at once."""
_WIDTH = 5
"""Words in a shingle, as in FineWeb's (Penedo et al. 2024, section 3.4)."""
_END = DOCUMENT_END[0]
_ASCII = bytes(
    byte if byte >= 0x80 else 0x20 if chr(byte).isspace() else byte + 32 if chr(byte).isupper() else byte
    for byte in range(256)
)
"""The byte that stands for a byte: white space of ASCII is a space, and its capitals are small."""
_NO_WIDTH = "\u200b".encode()
"""A space without width, at which Thai and Khmer are wrapped."""
_CHANGING = ((0x80, 0x3400), (0xA000, 0xAE4C), (0xF900, 0x20000), (0x2F800, 0x2FA20))
"""Where the characters are that NFC or case folding changes, or that join those before them; of Hangul's syllables, as
many as have all of its vowels and ends."""
_PUNCTUATION = ((0x3001, 0x3041), (0xFF01, 0xFFE7))
"""Signs of Chinese and Japanese, and full-width forms: no white space is between them and letters."""
_ALONE, _MOVES = 1, 2
"""Kinds of characters: a word of its own; what NFC or case folding changes, or joins to the character before it."""
_NEAR = 32
"""Stretches that are so many bytes apart are normalised as one: each costs 0.5 µs."""


Openings = tuple[tuple[tuple[int, ...], str], ...]
"""The ids and the text before what a message says, of the system's first; none in a set without conversations."""


class Entries:
    """The entries of a vocabulary, with ASCII in normal form; a special token is white space."""

    def __init__(self, vocabulary: Vocabulary, openings: Openings = ()):
        entries = [entry.translate(_ASCII) for entry in vocabulary.entries]
        for number in vocabulary.special.values():
            entries[number] = b"\xfe%d\xfe" % number if openings else b" "
        patterns = [
            re.escape(b"".join([*map(entries.__getitem__, ids), text.encode().translate(_ASCII)]))
            for ids, text in openings
        ]
        patterns[:1] = [pattern + rb"[^\xfe\xff]*" for pattern in patterns[:1]]
        self.between = re.compile(b"|".join([*patterns, rb"\xfe\d+\xfe"])) if openings else None
        """What of conversations is not compared: messages of the system, openings, special tokens."""
        self.end = len(entries)
        """The number of the last one, which ends a document."""
        entries.append(DOCUMENT_END)
        self.bytes = wrap_texts(pa.large_binary(), entries)
        self.begins = np.array([entry.startswith(b"\xfe" if openings else b" ") for entry in entries])
        """Which ones begin with white space: there, a word has ended; with conversations, where a message has."""


@lru_cache(maxsize=1)
def load_entries(path: str, sha256: str, task: str | None, added: Sequence[str], openings: Openings) -> Entries:
    """Return the entries of a `tokenizer.json`, given as for `read_tokenizer`; they are made once per process.

    Args:
        added: special tokens that conversations have, and the file has not.
        openings: what stands before messages.
    """
    return Entries(read_vocabulary(write_chat_tokens(read_tokenizer(path, sha256, task), added)), openings)


@cache
def _find_kinds() -> UInt8s:
    """Return the kind of each character, by its code point; 0 if it has none. Capitals of ASCII do not occur."""
    kinds = np.zeros(0x110000, np.uint8)
    for first, past in (*_PUNCTUATION, *chain(*SCRIPTS.values())):
        kinds[first:past] = _ALONE
    for one in (chr(code) for first, past in _CHANGING for code in range(first, past)):
        if not unicodedata.is_normalized("NFD", one):
            # What a character is composed of, its first part aside, may join what is before.
            kinds[list(map(ord, unicodedata.normalize("NFD", one)[1:]))] |= _MOVES
        if one.casefold() != one or unicodedata.combining(one) or not unicodedata.is_normalized("NFC", one):
            kinds[ord(one)] |= _MOVES
    return kinds


def hash_shingles(
    pieces: Iterable[Tokens], lengths: Integers, entries: Entries
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
    from pipeline.clean.measures.shingles import hash_words  # loads compiled code

    ends = np.cumsum(lengths, dtype=np.int64)
    waiting: list[Tokens] = []
    last = np.zeros(0, np.uint64)
    done = read = first = 0
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
        if not len(part):
            continue
        own = ends[first : np.searchsorted(ends, done + len(part), "right")]
        part[own - done - 1] = entries.end
        done += len(part)
        spelled = entries.bytes.take(wrap_numbers(pa.uint32(), part))
        data = bytes(memoryview(spelled.buffers()[2] or b"")[: text_offsets(spelled)[-1]]).replace(_NO_WIDTH, b" ")
        text = _normalise(entries.between.sub(b" ", data) if entries.between else data)
        stops = np.flatnonzero(text == _END)
        if len(stops) == 0 or stops[-1] + 1 < len(text):
            stops = np.append(stops, len(text))
        keys, sums = np.empty(len(text) // 2 + 1, np.uint64), np.empty((len(stops), 2), np.int64)
        keys = np.append(last, keys[: hash_words(text, stops, keys, sums)])
        counts, characters = sums.T
        counts[0] += len(last)
        # A document that goes on takes its last words along; one that has ended has a shingle of few words, too.
        past = np.cumsum(counts)
        missing = np.maximum(_WIDTH - counts, 0)
        missing[len(own) :] = 0
        last = keys[past[-1] - min(_WIDTH, counts[-1]) :] if len(own) < len(stops) else last[:0]
        if missing.any():
            keys = np.insert(keys, np.repeat(past, missing), 0)
            counts += missing
        shingles = np.maximum(counts - _WIDTH + 1, 0)
        begins = spread(np.cumsum(counts) - counts, shingles)
        yield first, shingles, characters, hash_ngrams(keys, _WIDTH)[begins]
        first += len(own)


def _normalise(data: bytes) -> UInt8s:
    """Return spelled documents in normal form; characters that are words have white space around them."""
    try:
        starts, stops, characters = find_characters(data)
    except UnicodeDecodeError:  # the tokenizer lacks bytes
        data = DOCUMENT_END.join([part.decode(errors="replace").encode() for part in data.split(DOCUMENT_END)])
        starts, stops, characters = find_characters(data)
    kinds = _find_kinds()[characters]
    if len(moves := np.flatnonzero(kinds & _MOVES)):
        # Each goes with the character before it in its document, and with those nearby.
        adjoins = np.append(0, stops)[moves] == starts[moves]
        begins = np.where(adjoins, np.append(0, starts)[moves], np.maximum(starts[moves] - 1, 0))
        text, stops = np.frombuffer(data, np.uint8), stops[moves]
        begins = np.where(text[begins] == _END, starts[moves], begins)
        own = np.searchsorted(np.flatnonzero(text == _END), begins)
        new = np.append(True, (begins[1:] > stops[:-1] + _NEAR) | (own[1:] > own[:-1]))
        stretches = np.stack([begins[new], stops[np.append(new[1:], True)]], axis=1)
        parts = [data[start:stop] for start, stop in pairwise([0, *stretches.ravel().tolist(), len(data)])]
        old = b"\n".join(parts[1::2]).decode(errors="surrogateescape")  # no line feed is in a part
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", old).casefold())
        parts[1::2] = folded.encode(errors="surrogateescape").split(b"\n")
        data = b"".join(parts)
    if not (kinds & _ALONE).any():  # no other character becomes one
        return np.frombuffer(data, np.uint8).copy()
    starts, stops, characters = find_characters(data)
    alone = _find_kinds()[characters] & _ALONE > 0
    return np.insert(np.frombuffer(data, np.uint8), np.append(starts[alone], stops[alone]), _ASCII[0x20])


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

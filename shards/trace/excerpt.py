"""The text around a hit in a document, cut between characters: what a person reads of a trace or an audit."""

from __future__ import annotations

from dataclasses import dataclass

from shards.errors import set_error
from shards.format.arrays import Tokens
from shards.format.reader import Shard
from shards.format.vocabulary import Vocabulary
from shards.trace.locate import Place

CONTEXT_BYTES = 120
"""Bytes of text shown on each side of a hit."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A hit and the text on either side of it; bytes that are not UTF-8 are lone surrogates.

    For a long hit, `hit` is its beginning, `left_out` counts the rest in bytes, and `after` is empty.
    """

    before: str
    hit: str
    after: str
    left_out: int = 0


def read_excerpt(shard: Shard, place: Place, first: int, last: int, *, vocabulary: Vocabulary) -> tuple[int, Excerpt]:
    """Return the excerpt around the tokens [first, last) of a document, and the byte of its text that they begin at.

    Args:
        shard: the shard that holds it.
        place: the document.
        first: a token of the document.
        last: one past the last.
        vocabulary: the set's.

    Raises:
        ShardSetError: the shard's files are not what the manifest says.
    """
    try:
        return cut_tokens(shard.read(place.start, place.start + place.tokens), first, last, vocabulary)
    except IndexError as error:
        message = f"holds an id that the tokenizer lacks; expected less than {len(vocabulary)}"
        raise set_error("token_out_of_range", shard.name, message) from error


def cut_tokens(tokens: Tokens, first: int, last: int, vocabulary: Vocabulary) -> tuple[int, Excerpt]:
    """Return the excerpt around the tokens [first, last) of a document's, and the byte of its text that they begin at.

    Raises:
        IndexError: an id is outside the vocabulary.
    """
    before, hit, after = (vocabulary.decode(part) for part in (tokens[:first], tokens[first:last], tokens[last:-1]))
    begin, skipped = vocabulary.split_document(tokens[:-1])
    # BOS and the tokenizer's prefix do not count as text, unless the hit is BOS itself.
    hidden = len(vocabulary.decode(tokens[:begin])) + skipped if last > begin else 0
    start, stop = (max(0, at - hidden) for at in (len(before), len(before) + len(hit)))
    return start, cut_excerpt((before + hit + after)[hidden:], start, stop)


def cut_excerpt(text: bytes, start: int, end: int, *, around: int = CONTEXT_BYTES) -> Excerpt:
    """Return the excerpt around the bytes [start, end) of a text: `around` bytes on each side, cut between characters.

    For a hit of more than `2 * around` bytes, only its beginning is returned, without the text after it; `left_out`
    counts the rest.
    """
    # A long hit is cut, and then nothing after it is shown.
    cut, whole = start + 2 * around, end
    if end > cut:
        while cut > start + 1 and text[cut] & 0xC0 == 0x80:
            cut -= 1
        text, end = text[:cut], cut
    # Bytes that continue a character (10xxxxxx) are skipped, so that no character is cut.
    low, high = max(0, start - around), min(len(text), end + around)
    while low > 0 and low < start and text[low] & 0xC0 == 0x80:
        low += 1
    while high < len(text) and high > end and text[high] & 0xC0 == 0x80:
        high -= 1
    parts = (text[low:start], text[start:end], text[end:high])
    return Excerpt(*(part.decode("utf-8", "surrogateescape") for part in parts), left_out=whole - end)

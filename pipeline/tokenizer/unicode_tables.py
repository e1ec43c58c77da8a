"""Characters that gigatoken and `tokenizers` take for different kinds: the Unicode tables of one are newer.

`tokenizers` decides the ids of documents that hold one. A test computes both lists from the two libraries, so that a
version which changes them is seen.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import text_bytes, text_offsets
from shards.format.arrays import Int64s, UInt8s, UInt32s


def _parse(ranges: str) -> UInt32s:
    """Return a Unicode table: first code points of ranges and those after them, by turns, uint32 `(2 * ranges,)`."""
    pairs = [part.partition("-") for part in ranges.split()]
    return np.array([[int(first, 16), int(last or first, 16) + 1] for first, _, last in pairs], np.uint32).reshape(-1)


LETTERS = _parse(
    "88F C5C CDC 1ACF-1ADD 1AE0-1AEB A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 10EFA-10EFB 11B60-11B67 "
    "11DB0-11DDB 11DE0-11DE9 16EA0-16EB8 16EBB-16ED3 16FF2-16FF6 187F8-187FF 18D09-18D1E 18D80-18DF2 "
    "1E6C0-1E6DE 1E6E0-1E6F5 1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479"
)
"""Letters and marks of Unicode 17, which `tokenizers` 0.23 takes for symbols: words end there."""
MARKS = _parse(
    "7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ADD 1AE0-1AEB 1DF6-1DFA A82C 105C0-105FF 10D24-10D27 "
    "10D69-10D6D 10EAB-10EAC 10EFA-10EFB 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 11380-113FF 1145E "
    "11839-1183A 11930-11938 1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97 11F41-11F42 "
    "16100-1613F 16D40-16D7F 16FF0-16FF1 1E08F 1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1E6E3 "
    "1E6E6 1E6EE-1E6EF 1E6F5"
)
"""Marks, and the scripts of letters that compose, which its NFC does not know."""
_LEADS = (b"\xdf", b"\xe0", b"\xe1", b"\xea", b"\xf0")
"""The first bytes of the characters of both lists in UTF-8."""
_SLICE_BYTES = 1 << 20


def find_documents(text: pa.LargeStringArray, *, has_normalizer: bool) -> Int64s:
    """Return which documents hold a character of the Unicode lists, in ascending order: int64.

    Args:
        text: the documents, none of them null.
        has_normalizer: whether the tokenizer normalizes text, so that marks count, too.
    """
    offsets = text_offsets(text)
    data = np.frombuffer(text_bytes(text), np.uint8)
    found = [np.zeros(0, np.int64)]
    for start in range(0, len(data), _SLICE_BYTES):  # a long document is not copied whole
        part = data[start : start + _SLICE_BYTES]
        content = part.tobytes()
        # A few GB/s; the rest is for text that has such characters.
        found += [
            _find_places(data, start + np.flatnonzero(part == lead[0]), has_normalizer)
            for lead in _LEADS
            if lead in content
        ]
    return np.unique(np.searchsorted(offsets[1:] - offsets[0], np.concatenate(found), "right"))


def _find_places(data: UInt8s, places: Int64s, has_normalizer: bool) -> Int64s:
    """Return those of the places of one lead byte whose character is on a list."""
    # In valid UTF-8 the bytes of a character follow its first one.
    lead = data[places[0]]
    size = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    points = (data[places] & (0x7F >> size)).astype(np.uint32)
    for index in range(1, size):
        points = points << 6 | data[places + index] & 0x3F
    lists = (LETTERS, MARKS)[: 1 + has_normalizer]
    return places[np.any([np.searchsorted(ranges, points, "right") % 2 == 1 for ranges in lists], axis=0)]

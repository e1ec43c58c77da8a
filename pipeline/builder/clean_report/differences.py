"""Where the texts of two near-duplicates differ: the part of both that is shown, and its marks."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Any

PART_CHARACTERS = 1200
"""Characters of each text that are shown."""
BEFORE_CHARACTERS = 240
"""Equal characters that are shown before the first difference."""
COMPARED_CHARACTERS = 100_000
"""The beginning of both texts in which the first difference is looked for."""

_WORDS = re.compile(r"\w+|\s+|[^\w\s]")


Piece = tuple[str, bool]
"""A piece of a text, and whether the other text lacks it."""


def cut_parts(first: str, second: str) -> tuple[int, str, str]:
    """Return the part of two texts that shows where they first differ.

    Args:
        first: the beginning of a text, at most `COMPARED_CHARACTERS`.
        second: the same of another text.

    Returns:
        The character at which both parts begin; and the parts. It is 0 if the texts are equal as far as they go.
    """
    shorter = min(len(first), len(second))
    same = next((place for place in range(shorter) if first[place] != second[place]), shorter)
    # Begin some characters before the first difference.
    start = max(0, same - BEFORE_CHARACTERS) if first != second else 0
    if start:  # at the beginning of a line or a word, if there is one
        start = next((place + 1 for mark in "\n " if (place := first.find(mark, start, same)) >= 0), start)
    return start, first[start : start + PART_CHARACTERS], second[start : start + PART_CHARACTERS]


def mark_differences(first: str, second: str, *, cut: bool) -> tuple[list[Piece], list[Piece]]:
    """Return both texts in pieces, word by word: those that both have, and those that one of them lacks.

    Args:
        first: a text.
        second: another one.
        cut: whether the texts go on: what then follows the last equal words is not marked, because it may be equal to
            what is not shown.
    """
    words = _WORDS.findall(first), _WORDS.findall(second)
    codes = SequenceMatcher(None, words[0], words[1]).get_opcodes()
    pieces: tuple[list[Piece], list[Piece]] = ([], [])
    for number, (tag, *edges) in enumerate(codes):
        # The end of a cut text may go on like the other.
        differs = tag != "equal" and not (cut and number == len(codes) - 1)
        for own, held, (begin, end) in zip(pieces, words, (edges[:2], edges[2:]), strict=True):
            if begin < end:
                own.append(("".join(held[begin:end]), differs))
    return pieces


def mark_pair(pair: dict[str, Any]) -> dict[str, Any]:
    """Mark the differences of a pair: the part of each document in pieces, and which parts are cut."""
    part = pair["part"]
    cut = {end: len(part[end]) == PART_CHARACTERS for end in ("dropped", "kept")}
    dropped, kept = mark_differences(part["dropped"], part["kept"], cut=any(cut.values()))
    return {"start": part["start"], "dropped": dropped, "kept": kept, "cut": cut}

"""Every measure of a document in plain Python, one definition after the other: what the fast code must equal."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np


def measure_slowly(text: str, name: str) -> np.float32:
    """Return one measure of a document that is not empty."""
    return np.float32(SLOW_MEASURES[name](text))


def _divide(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _lines(text: str) -> list[str]:
    """Return all lines; a line feed at the end opens no further one."""
    return text.removesuffix("\n").split("\n")


def _bytes(text: str) -> int:
    return len(text.encode())


def _mean_word_chars(text: str) -> float:
    return _divide(sum(map(len, text.split())), len(text.split()))


def _mean_line_bytes(text: str) -> float:
    return _divide(sum(map(_bytes, _lines(text))), len(_lines(text)))


def _alphanumeric(text: str) -> float:
    return _divide(len(re.findall(r"[A-Za-z0-9]|[^\x00-\x7f\s]", text)), len(text))


SLOW_MEASURES: dict[str, Callable[[str], float]] = {
    "words": lambda text: len(text.split()),
    "mean_word_chars": _mean_word_chars,
    "mean_line_bytes": _mean_line_bytes,
    "longest_line_bytes": lambda text: max(map(_bytes, _lines(text))),
    "alphanumeric": _alphanumeric,
}

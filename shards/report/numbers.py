"""Numbers as a page and a card show them: counts, sizes in bytes, shares, changes."""

from __future__ import annotations


def count(number: float) -> str:
    """Return a number on a page: a whole one, with thousands separators."""
    return f"{number:,.0f}"


def signed(number: int) -> str:
    """Return a number on a page: a whole one, with its sign and thousands separators."""
    return f"{number:+,}".replace("-", "\u2212") if number else "0"


def signed_percent(share: float) -> str:
    """Return a number on a page: a share as a percentage with its sign."""
    return f"{100 * share:+.1f} %".replace("-", "\u2212")


_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


def compact(number: float) -> str:
    """Return a number on a page: three digits with a unit, such as `5.86 M`."""
    for scale, unit in _UNITS:
        if number >= scale * 0.9995:
            return f"{_three_digits(number / scale)} {unit}"
    return _three_digits(number)


def size(number: float) -> str:
    """Return a number on a page: bytes, three digits with a unit, such as `7.9 MB`."""
    for scale, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if number >= scale * 0.9995:
            return f"{_three_digits(number / scale)} {unit}"
    return f"{number:,.0f} B"


def percent(share: float, digits: int = 2) -> str:
    """Return a number on a page: a share as a percentage."""
    return f"{100 * share:.{digits}f} %"


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    text = f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"
    return text.rstrip("0").rstrip(".")

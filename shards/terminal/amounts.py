"""Amounts as people read them: three digits with a scale, such as `9.07 MB`, `5.76 M tokens` or `1.5 MB/s`."""

_SIZES = {10**12: "TB", 10**9: "GB", 10**6: "MB", 10**3: "kB"}
_COUNTS = {10**12: "T", 10**9: "B", 10**6: "M", 10**3: "K"}


def format_size(size: float) -> str:
    """Return a size in bytes, such as `7.9 MB`; a MB is 1,000,000 bytes."""
    return _scale(size, _SIZES) or f"{size:,.0f} B"


def compact(number: float) -> str:
    """Return an amount in three digits with a scale, such as `5.86 M`; a B is a billion."""
    return _scale(number, _COUNTS) or _three_digits(number)


def format_amount(count: float, unit: str) -> str:
    """Return an amount of a unit: a size for `bytes`, `5.86 M tokens`, or `1,000 steps`."""
    if unit == "bytes":
        return format_size(count)
    return f"{compact(count) if unit == 'tokens' else format(count, ',.0f')} {unit}"


def format_speed(count: float, seconds: float, unit: str) -> str:
    """Return a speed such as `1.5 MB/s`; an empty text if it is unknown or less than one a second."""
    return f"{format_amount(count / seconds, unit)}/s" if count >= seconds > 0 else ""


def format_duration(seconds: float) -> str:
    """Return a duration, such as `20 s`, `3 min` or `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _scale(number: float, scales: dict[int, str]) -> str:
    for scale, name in scales.items():
        if number >= scale * 0.9995:  # 999.6 k would be shown as 1000 k
            return f"{_three_digits(number / scale)} {name}"
    return ""


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    text = f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"
    return text.rstrip("0").rstrip(".")

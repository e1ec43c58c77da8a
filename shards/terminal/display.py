"""Lines, tables and JSON that all commands print. Their content is made in the packages' `cli` modules.

Names and texts come from files that others wrote. Everything that goes to a terminal passes through `printable`, so
that no document can move the cursor, rename the window or reverse the line. `--json` goes through `format_json`.
"""

import contextlib
import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, cast

FULL_WIDTH = 160
"""Columns that a table may have at most if stdout is no terminal and COLUMNS is not set."""

PROSE_SPACES = 4
"""A column of a table is prose if one of its cells has as many spaces."""

JsonObject = dict[str, Any]
"""A row of a table by its columns, or an object of JSON by its keys."""
Table = list[JsonObject]
"""A table: a dict for each row, with a key for each column."""

_SURROGATES = re.compile("[\ud800-\udfff]")

# Control, format (bidirectional overrides, zero-width), surrogate and line-separator characters. Newline and tab stay.
_ESCAPED_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def printable(text: str, *, keep: str = "") -> str:
    """Return text to print, with every control character escaped, such as `\x1b`, except those in `keep`.

    A byte that is not UTF-8 (a lone surrogate in Python) is escaped as such: `\\xe2`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if char not in keep and unicodedata.category(char) in _ESCAPED_CATEGORIES
        else char
        for char in _SURROGATES.sub(_escape_surrogate, text)
    )


def _escape_surrogate(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def format_json(value: Any) -> str:
    """Return a value as indented JSON to print; its strings are valid Unicode, as `printable` makes them.

    In ASCII, so that control characters stay exact and harmless.
    """
    text = json.dumps(value, ensure_ascii=False)
    # The backslash of an escaped byte must itself be escaped in JSON.
    valid = _SURROGATES.sub(lambda match: "\\" + _escape_surrogate(match), text)
    return json.dumps(json.loads(valid), indent=2)


def say(message: str) -> None:
    """Print a message on stderr, escaped for display, above the progress bar if there is one.

    A stderr that cannot be written to (its reader has gone, its disk is full) stops no work.
    """
    with contextlib.suppress(OSError):
        print(printable(message, keep="\n\t"), file=sys.stderr, flush=True)


def stdout_console() -> Any:
    """Return a rich console on stdout that interprets no markup in text.

    It is as wide as the terminal; without one, as wide as the environment's COLUMNS says.
    """
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    given = int(columns) if columns.isdecimal() else 0
    # rich would assume 80 columns where there is no terminal.
    width = None if sys.stdout.isatty() else given or FULL_WIDTH
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    console.on_broken_pipe = _raise_broken_pipe
    return console


def _raise_broken_pipe() -> None:
    raise BrokenPipeError  # rich would end the process with status 1


def print_rows(rows: Table) -> None:
    """Print a table on stdout: a column for each key, a row for each dict. All dicts have the same keys.

    All columns but the first are right-aligned, except those of prose, which wraps. A cell may be a rich text. An empty
    line follows. A table that is too wide is shown as a list of `header: value` lines: no number or word is broken.
    """
    if not rows:
        return
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    values = [[row[key] for key in rows[0]] for row in rows]
    cells = [[value if isinstance(value, Text) else Text(format_value(value)) for value in row] for row in values]
    headers = [key.replace("_", " ") for key in rows[0]]
    prose = [any(str(row[key]).count(" ") >= PROSE_SPACES for row in rows) for key in rows[0]]
    # A column is as wide as its longest line or, if it wraps, as its longest word.
    widths: list[int] = []
    for header, wraps, *column in zip(headers, prose, *cells, strict=True):
        texts = [header, *(cell.plain for cell in column)]
        parts = [part for text in texts for part in (text.split() if wraps else text.splitlines())]
        widths.append(max(Text(part).cell_len for part in parts))
    console = stdout_console()
    # Beside each column are a space on either side and a border, but none outside.
    if sum(widths) + 3 * len(widths) - 1 > console.width:
        listed = ["\n".join(map("{}: {}".format, headers, row)) for row in cells]
        console.print(Text("\n\n".join(listed) + "\n", overflow="fold"))
        return
    table = RichTable(box=box.SIMPLE, pad_edge=False)
    for column, (header, wraps, width) in enumerate(zip(headers, prose, widths, strict=True)):
        justify = "left" if not column or wraps else "right"
        table.add_column(header, justify=justify, no_wrap=not wraps, min_width=width)
    for row in cells:
        table.add_row(*row)
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()[1:]))  # the first line is empty


def print_lines(lines: Iterable[str]) -> None:
    """Print lines on stdout."""
    for line in lines:
        print(printable(line))


def find_difference(first: Sequence[object], second: Sequence[object]) -> int:
    """Return the first place at which two texts or lists differ, to show them from there; the shorter's end if none."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


def describe_shown(shown: int, total: int) -> str:
    """Return the end of a sentence that a command displays: how many of all are shown; nothing if all are."""
    return "" if shown == total else f", the first {shown:,} of {total:,} shown"


def format_value(value: Any) -> str:
    """Return a value as it is printed: digits in groups of three, few decimals."""
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value)
        return "  ".join(f"{printable(name)} {format_value(part)}" for name, part in parts.items())
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:,.{2 if abs(value) >= 100 else 3}f}" if abs(value) >= 1 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else printable(str(value))

"""Escape foreign text for a page and a card: names, tokens and documents are data, whatever their content.

jinja2 escapes the page. This module also makes invisible characters (controls, right-to-left overrides, lone
surrogates) visible, as `display.printable` does on a terminal. For the card it prevents Markdown syntax: inline text
is put in code spans, documents in fences longer than any of theirs, and a YAML dumper writes the header.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import yaml
from markupsafe import Markup

from shards.terminal.display import printable

MAX_TOKEN_CHARACTERS = 48

_KEPT_IN_DOCUMENTS = "\n\t\u200c\u200d"
"""Line breaks, and the joiners that emoji and several scripts need; they only join the characters next to them."""


def visible(text: str) -> Markup:
    """Return a name or a short text for the page: invisible characters are spelt out and marked."""
    return _mark(text, "")


def visible_document(text: str) -> Markup:
    """Return a document's text for the page, as `visible`, with its lines."""
    return _mark(text, _KEPT_IN_DOCUMENTS)


def visible_token(text: str) -> Markup:
    """Return a token's text for the page: spaces are shown as dots, and a long text is visibly shortened."""
    length, shown = len(text), text[:MAX_TOKEN_CHARACTERS]
    parts = [Markup('<i class="esc">·</i>') * len(run) if run[0] == " " else visible(run) for run in _spaces(shown)]
    cut = Markup(' <i class="esc">… {} characters</i>').format(f"{length:,}") if length > len(shown) else ""
    return Markup("").join(parts) + cut


def _spaces(text: str) -> list[str]:
    return re.findall(r" +|[^ ]+", text)


def _mark(text: str, keep: str) -> Markup:
    if text.isascii() and text.isprintable():
        return Markup.escape(text)
    parts: list[Markup] = []
    for hidden, run in groupby(text, key=lambda character: printable(character, keep=keep) != character):
        joined = "".join(run)
        parts.append(
            Markup('<i class="esc">{}</i>').format(printable(joined, keep=keep)) if hidden else Markup.escape(joined)
        )
    return Markup("").join(parts)


def shorten(text: str, characters: int) -> str:
    """Return a text of at most so many characters; an ellipsis replaces the middle of a longer one."""
    if len(text) <= characters:
        return text
    head = (characters - 1) * 2 // 3
    tail = max(0, characters - 1 - head)
    return f"{text[:head]}…{text[len(text) - tail :]}"


def code_span(text: str) -> str:
    """Return a text as a Markdown code span, in which no syntax, HTML or link is recognized."""
    text = printable(text) or " "
    run = max((len(ticks) for ticks in re.findall("`+", text)), default=0) + 1
    pad = " " if text.strip(" ") and (text[0] in "` " or text[-1] in "` ") else ""
    return f"{'`' * run}{pad}{text}{pad}{'`' * run}"


def code_cell(text: str) -> str:
    """Return a text as a code span in a table: rows are split at | before anything else is parsed, even in code."""
    return code_span(text).replace("|", "\\|")


def plain_span(text: str) -> str:
    """Return a text for Markdown unchanged if that is harmless, else as a code span."""
    return text if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 -]*", text) else code_span(text)


def sentence(text: str) -> str:
    """Return prose that may quote foreign names for Markdown, with everything that could be syntax escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~$&@:.])", r"\\\1", printable(text))


def fence(text: str, language: str = "") -> str:
    """Return a text as a Markdown code block, its fence longer than any run of backticks in the text."""
    shown = printable(text, keep=_KEPT_IN_DOCUMENTS)
    ticks = "`" * max(3, max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    return f"{ticks}{language}\n{shown}\n{ticks}"


def yaml_header(values: dict[str, Any]) -> str:
    """Return a card's header between its two lines; ASCII only, so that every character is exact and visible."""
    body = yaml.safe_dump(values, sort_keys=False, allow_unicode=False, default_flow_style=False, width=1 << 30)
    return f"---\n{body}---\n"


def python_literal(text: str) -> str:
    """Return a string literal of Python, ASCII only."""
    return ascii(text)


def count(number: float) -> str:
    """Return a whole number with thousands separators."""
    return f"{number:,.0f}"


def signed(number: int) -> str:
    """Return a whole number with its sign and thousands separators."""
    return f"{number:+,}".replace("-", "\u2212") if number else "0"


def signed_percent(share: float) -> str:
    """Return a share as a percentage with its sign."""
    return f"{100 * share:+.1f} %".replace("-", "\u2212")


_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


def compact(number: float) -> str:
    """Return a number of three digits with a unit, such as `5.86 M`."""
    for scale, unit in _UNITS:
        if number >= scale * 0.9995:
            return f"{_three_digits(number / scale)} {unit}"
    return _three_digits(number)


def size(number: float) -> str:
    """Return bytes of three digits with a unit, such as `7.9 MB`."""
    for scale, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if number >= scale * 0.9995:
            return f"{_three_digits(number / scale)} {unit}"
    return f"{number:,.0f} B"


def percent(share: float, digits: int = 2) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.{digits}f} %"


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    text = f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"
    return text.rstrip("0").rstrip(".")

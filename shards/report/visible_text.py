"""Foreign text on a page, with its invisible characters visible: names, tokens and documents are data.

jinja2 escapes the page. This module spells out controls, right-to-left overrides and lone surrogates, as
`display.printable` does on a terminal. What a card needs is in `shards.report.markdown`.
"""

from __future__ import annotations

import re
from itertools import groupby

from markupsafe import Markup

from shards.terminal.display import printable

MAX_TOKEN_CHARACTERS = 48

KEPT_IN_DOCUMENTS = "\n\t\u200c\u200d"
"""Line breaks, and the joiners that emoji and several scripts need; they only join the characters next to them."""


def visible(text: str) -> Markup:
    """Return a name or a short text for the page: invisible characters are spelt out and marked."""
    return _mark(text, "")


def visible_document(text: str) -> Markup:
    """Return a document's text for the page, as `visible`, with its lines."""
    return _mark(text, KEPT_IN_DOCUMENTS)


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
    # Runs of characters that are spelt out, and runs that are not, in turn.
    parts: list[Markup] = []
    for hidden, run in groupby(text, key=lambda character: printable(character, keep=keep) != character):
        joined = "".join(run)
        parts.append(
            Markup('<i class="esc">{}</i>').format(printable(joined, keep=keep)) if hidden else Markup.escape(joined)
        )
    return Markup("").join(parts)


def shorten(text: str, characters: int) -> str:
    """Return a text of at most this many characters for a page; an ellipsis replaces the middle of a longer one."""
    if len(text) <= characters:
        return text
    # The beginning of a name says more than its end.
    head = (characters - 1) * 2 // 3
    tail = max(0, characters - 1 - head)
    return f"{text[:head]}…{text[len(text) - tail :]}"

"""Foreign text on a page or a card, with its invisible characters visible: names, tokens and documents are data.

jinja2 escapes the page. This module spells out controls, right-to-left overrides and lone surrogates, as
`display.printable` does on a terminal. In the Markdown of a card, foreign text is in code spans, in fences, or has
every character of syntax escaped.
"""

from __future__ import annotations

import re
from itertools import groupby

from markupsafe import Markup

from shards.terminal.display import printable

MAX_TOKEN_CHARACTERS = 48

KEPT_IN_DOCUMENTS = "\n\t\u200c\u200d"
"""Line breaks, and the joiners that emoji and several scripts need; they only join the characters next to them."""


def visible(text: str, keep: str = "") -> Markup:
    """Return a text for the page: invisible characters are spelt out and marked, unless they are among `keep`."""
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


def visible_token(text: str) -> Markup:
    """Return a token's text for the page: spaces are shown as dots, and a long text is visibly shortened."""
    length, shown = len(text), text[:MAX_TOKEN_CHARACTERS]
    runs: list[str] = re.findall(" +|[^ ]+", shown)
    parts = [Markup('<i class="esc">·</i>') * len(run) if run[0] == " " else visible(run) for run in runs]
    cut = Markup(' <i class="esc">… {} characters</i>').format(f"{length:,}") if length > len(shown) else ""
    return Markup("").join(parts) + cut


def shorten(text: str, characters: int) -> str:
    """Return foreign text of at most this many characters for a page; an ellipsis replaces a longer one's middle."""
    if len(text) <= characters:
        return text
    # The beginning of a name says more than its end.
    head = (characters - 1) * 2 // 3
    tail = max(0, characters - 1 - head)
    return f"{text[:head]}…{text[len(text) - tail :]}"


def code_span(text: str) -> str:
    """Return foreign text as a Markdown code span, in which no syntax, HTML or link is recognized."""
    text = printable(text) or " "
    run = max((len(ticks) for ticks in re.findall("`+", text)), default=0) + 1
    pad = " " if text.strip(" ") and (text[0] in "` " or text[-1] in "` ") else ""
    return f"{'`' * run}{pad}{text}{pad}{'`' * run}"


def code_cell(text: str) -> str:
    """Return foreign text as a code span in a table: rows are split at | before all else is parsed, even in code."""
    return code_span(text).replace("|", "\\|")


def plain_span(text: str) -> str:
    """Return foreign text for Markdown unchanged if that is harmless, else as a code span."""
    return text if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 -]*", text) else code_span(text)


def sentence(text: str) -> str:
    """Return prose that may quote foreign names for Markdown, with everything that could be syntax escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~$&@:.])", r"\\\1", printable(text))


def fence(text: str, language: str = "") -> str:
    """Return foreign text as a Markdown code block, its fence longer than any run of backticks in the text."""
    shown = printable(text, keep=KEPT_IN_DOCUMENTS)
    ticks = "`" * max(3, max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    return f"{ticks}{language}\n{shown}\n{ticks}"

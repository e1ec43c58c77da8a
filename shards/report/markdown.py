"""Foreign text in the Markdown of a data card: in code spans, in fences, or with every character of syntax escaped."""

from __future__ import annotations

import re

from shards.report.visible_text import KEPT_IN_DOCUMENTS
from shards.terminal.display import printable


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
    shown = printable(text, keep=KEPT_IN_DOCUMENTS)
    ticks = "`" * max(3, max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    return f"{ticks}{language}\n{shown}\n{ticks}"

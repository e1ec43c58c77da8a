"""Text for the demo's scores: documents that are too long for its corpus, which no model of it sees in training.

An eval set is made of their beginnings, and an eval task of what comes later: which of four paragraphs goes on after a
given one. The wrong ones go on in other documents. Deterministic for a given environment.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.demo.docstrings import MIN_CHARS, Docstring

EXCERPT_CHARS = 1_500
"""The beginning of a document is its first paragraphs, of at most so many characters."""
QUESTION_CHARS, CHOICE_CHARS = 200, 120
"""An item fits in the context of the demo's model, 128 tokens of about 3.5 characters."""
PARAGRAPH_CHARS = 80
PROSE_SHARE = 0.85
"""Characters and share of letters and spaces that a paragraph of the task has at least: no tables, no code."""
CHOICES = 4


class Continuation(NamedTuple):
    """An item of the eval task before it has wrong choices: the end of a paragraph, and how the next one begins."""

    question: str
    right: str
    name: str


def cut_excerpts(documents: Sequence[Docstring]) -> list[Docstring]:
    """Return the beginnings of documents, as whole paragraphs; those without a short first paragraph have none."""
    excerpts: list[Docstring] = []
    for document in documents:
        text = document.text[: _end_of_excerpt(document.text)].rstrip()
        if len(text) >= MIN_CHARS:
            excerpts.append(document._replace(text=text))
    return excerpts


def _end_of_excerpt(text: str) -> int:
    return max(0, text.rfind("\n\n", 0, EXCERPT_CHARS))


def write_items(documents: Sequence[Docstring]) -> str:
    """Return the items of the eval task as JSON lines: `question`, `choices`, `answer` (from 0), `document`.

    One item a document, if it has two paragraphs of prose in a row after its beginning.
    """
    found = [item for document in documents if (item := next(_find_continuations(document), None))]
    lines: list[str] = []
    for number, item in enumerate(found):
        # The wrong choices are the right ones of items that stand far off in the list.
        others = (found[(number + part * len(found) // CHOICES) % len(found)].right for part in range(1, CHOICES))
        wrong = [right for right in dict.fromkeys(others) if right != item.right]
        if len(wrong) == CHOICES - 1:
            answer = hashlib.sha256(item.question.encode()).digest()[0] % CHOICES
            choices = [*wrong[:answer], item.right, *wrong[answer:]]
            row = {"question": item.question, "choices": choices, "answer": answer, "document": item.name}
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    return "".join(lines)


def _find_continuations(document: Docstring) -> Iterator[Continuation]:
    rest = document.text[_end_of_excerpt(document.text) :]
    paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", rest)]
    for before, after in itertools.pairwise(paragraphs):
        if _is_prose(before) and _is_prose(after):
            # Cut between words: the question at its beginning, the choice at its end.
            question = before if len(before) <= QUESTION_CHARS else before[-QUESTION_CHARS:].partition(" ")[2]
            right = textwrap.shorten(after, CHOICE_CHARS, placeholder="")
            if right:  # not one word longer than that
                yield Continuation(question, right, f"{document.release} {document.path} {document.name}".rstrip())


def _is_prose(paragraph: str) -> bool:
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return len(paragraph) >= PARAGRAPH_CHARS and letters >= PROSE_SHARE * len(paragraph)

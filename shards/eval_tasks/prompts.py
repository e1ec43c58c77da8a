"""The prompt forms of the known eval tasks: a row of the data set in, an item out.

Each form gives the texts that lm-evaluation-harness 0.4 gives for its task of the same name (LAMBADA: for
`lambada_openai`), so that scores can be compared. A form does not check types: `read_items` checks the item.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

Row = dict[str, Any]
"""A row of a data set, by column."""

DELIMITER = " "
"""The text between a context and a choice; it is scored with the choice."""


class Item(NamedTuple):
    """One item of an eval task: the model scores each choice after its context."""

    contexts: tuple[str, ...]
    """The text before each choice: the same for all, unless the choices are in the contexts (WinoGrande)."""
    choices: tuple[str, ...]
    """The texts whose likelihood is compared, without the delimiter before them; one for LAMBADA."""
    answer: int
    """Which choice is right, from 0."""
    text: str
    """The question with its right answer, without the words of the prompt form: what a document must not hold."""

    @property
    def example(self) -> str:
        """The item with its right answer, as a few-shot example shows it."""
        return self.contexts[self.answer] + DELIMITER + self.choices[self.answer]


def ask(context: str, choices: list[str], answer: int, *, question: str) -> Item:
    """Return the item whose choices follow one context.

    Raises:
        ValueError: the answer is none of the choices.
    """
    if not 0 <= answer < len(choices):
        raise ValueError(f"the answer is choice {answer}, counted from 0; there are {len(choices)} choices")
    return Item((context,) * len(choices), tuple(choices), answer, f"{question} {choices[answer]}")


def find_label(labels: list[Any], answer: object) -> int:
    """Return the place of an answer among the labels of the choices.

    Raises:
        ValueError: it is none of them.
    """
    if answer not in labels:
        raise ValueError(f"the answer {answer!r} is none of the labels {', '.join(map(repr, labels))}")
    return labels.index(answer)


def ask_arc(row: Row) -> Item:
    """Return an item of ARC: the choices have labels, mostly A to D."""
    choices, question = row["choices"], row["question"]
    answer = find_label(choices["label"], row["answerKey"])
    return ask(f"Question: {question}\nAnswer:", choices["text"], answer, question=question)


def ask_openbookqa(row: Row) -> Item:
    """Return an item of OpenBookQA: the context is the bare stem of the question."""
    choices, stem = row["choices"], row["question_stem"]
    return ask(stem, choices["text"], find_label(choices["label"], row["answerKey"].lstrip()), question=stem)


def ask_piqa(row: Row) -> Item:
    """Return an item of PIQA: two ways to reach a goal."""
    return ask(f"Question: {row['goal']}\nAnswer:", [row["sol1"], row["sol2"]], row["label"], question=row["goal"])


def ask_sciq(row: Row) -> Item:
    """Return an item of SciQ: a supporting text, which may be empty, and the question; the right choice is the last."""
    support, question = row["support"].lstrip(), row["question"]
    choices = [row["distractor1"], row["distractor2"], row["distractor3"], row["correct_answer"]]
    return ask(f"{support}\nQuestion: {question}\nAnswer:", choices, 3, question=f"{support} {question}".lstrip())


def ask_hellaswag(row: Row) -> Item:
    """Return an item of HellaSwag: how a description goes on."""
    # str.capitalize lower-cases the other letters, too.
    context = _clean_wikihow(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    endings = [_clean_wikihow(ending) for ending in row["endings"]]
    return ask(context, endings, int(row["label"]), question=context)


def ask_winogrande(row: Row) -> Item:
    """Return an item of WinoGrande: the same end of a sentence after each of two names in its blank.

    Source of scoring the end and not the name: Trinh and Le 2018 (arXiv:1806.02847), partial evaluation.
    """
    before, blank, after = row["sentence"].partition("_")
    if not blank:
        raise ValueError("the sentence has no blank `_`")
    contexts = tuple(before + row[option] for option in ("option1", "option2"))
    answer = find_label(["1", "2"], row["answer"])
    return Item(contexts, (after.strip(),) * 2, answer, contexts[answer] + after)


def ask_lambada(row: Row) -> Item:
    """Return an item of LAMBADA: the last word of a passage, which is right if each of its tokens is the likeliest."""
    passage, _, word = row["text"].rpartition(" ")
    return Item((passage,), (word,), 0, row["text"])


def _clean_wikihow(text: str) -> str:
    """Return a text of HellaSwag without the marks of WikiHow's headings."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")

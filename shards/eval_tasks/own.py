"""Eval tasks of the user: the columns of files that hold a question, its choices and the right one."""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import Field

from shards.config import Settings
from shards.eval_tasks.known import EvalTask
from shards.eval_tasks.prompts import Item, Row, ask, check_choices, check_text, find_label, shorten

Column = Annotated[str, Field(min_length=1)]


class OwnColumns(Settings):
    """The columns of an eval task's files, and its prompt form. Dots descend into structs: `choices.text`."""

    question: Column = "question"
    """Column of the question."""
    choices: Column = "choices"
    """Column of the texts of the choices, a list."""
    answer: Column = "answer"
    """Column of the right choice: its label if `labels` is given, else its place from 0, or its text."""
    labels: Column | None = None
    """Column of the labels of the choices, a list as long as `choices`: `choices.label`."""
    prompt: Annotated[str, Field(pattern=r"\{question\}")] = "Question: {question}\nAnswer:"
    """The text before a choice, in which the question takes the place of `{question}`. A space follows it."""

    def describe(self, name: str) -> EvalTask:
        """Return the eval task whose rows have these columns."""
        return EvalTask(name, self._ask)

    def _ask(self, row: Row) -> Item:
        question, choices, answer = (find_value(row, column) for column in (self.question, self.choices, self.answer))
        question, choices = check_text(question, self.question), check_choices(choices, self.choices)
        if self.labels is not None:
            place = find_label(find_value(row, self.labels), answer, choices)
        elif isinstance(answer, str):
            if answer not in choices:
                raise ValueError(
                    f"the answer {shorten(answer)} is none of the choices; `labels` names a column of labels"
                )
            if choices.count(answer) > 1:
                raise ValueError(f"the answer {shorten(answer)} is several of the choices")
            place = choices.index(answer)
        else:
            place = answer
        return ask(self.prompt.replace("{question}", question), choices, place, question=question)


def find_value(row: Row, column: str) -> Any:
    """Return the value of a column; dots descend into structs.

    Raises:
        ValueError: the row has no such column.
    """
    value: Any = row
    for part in column.split("."):
        columns = cast("Row", value) if isinstance(value, dict) else Row()
        if part not in columns:
            raise ValueError(f"no column {column!r}; found {shorten(list(columns)) if columns else 'no struct'}")
        value = columns[part]
    return value

"""Eval tasks of the user: the columns of files that hold a question, its choices and the right one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, cast

from pydantic import Field

from shards.config import Settings, in_form
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
    prompt: Annotated[str, Field(min_length=1), in_form(r"(?s).*\{question\}.*", "text with {question} in it")] = (
        "Question: {question}\nAnswer:"
    )
    """The text before a choice, in which the question takes the place of `{question}`. A space follows it."""

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the keys of the table: those of a subclass, then the columns and the prompt."""
        return sorted(cls.model_fields, key=OwnColumns.model_fields.__contains__)

    def describe(self, name: str) -> EvalTask:
        """Return the eval task whose rows have these columns."""
        return EvalTask(name, partial(self._ask, f"eval.tasks.{name}"))

    def _ask(self, place: str, row: Row) -> Item:
        def read(key: str, check: Callable[[Any, str], Any] = lambda value, _: value) -> Any:
            column = getattr(self, key)
            try:
                return check(find_value(row, column), column)
            except ValueError as error:
                raise ValueError(f"{error}; {place}.{key} names the column") from error

        question, choices, answer = read("question", check_text), read("choices", check_choices), read("answer")
        if self.labels is not None:
            right = find_label(read("labels"), answer, choices)
        elif isinstance(answer, str):
            if answer not in choices:
                raise ValueError(
                    f"the answer {shorten(answer)} is none of the choices; {place}.labels names a column of labels"
                )
            if choices.count(answer) > 1:
                raise ValueError(f"the answer {shorten(answer)} is several of the choices")
            right = choices.index(answer)
        else:
            right = answer
        return ask(self.prompt.replace("{question}", question), choices, right, question=question)


def find_value(row: Row, column: str) -> Any:
    """Return the value of a column; dots descend into structs.

    Raises:
        ValueError: the row has no such column, or it is a struct.
    """
    value: Any = row
    for part in column.split("."):
        columns = cast("Row", value) if isinstance(value, dict) else Row()
        if part not in columns:
            raise ValueError(f"no column {column!r}; found {shorten(list(columns)) if columns else 'no struct'}")
        value = columns[part]
    if isinstance(value, dict):
        inner = shorten([f"{column}.{name}" for name in cast("Row", value)])
        raise ValueError(f"column {column!r} holds a struct; expected one of its columns: {inner}")
    return value

"""The table `[eval]` of a train recipe: eval sets, eval tasks, the rules between their keys, the files they name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import ConfigDict, Field, JsonValue, PositiveInt

from shards.config import Document, Settings, in_form, named_tables, read_partly, table_of
from shards.eval_tasks.known import (
    KNOWN_TASKS,
    EvalTask,
    Item,
    Row,
    ask,
    check_choices,
    check_text,
    find_label,
    shorten,
)
from shards.terminal.gone import nearest

EvalName = Annotated[
    str,
    in_form(
        r"[A-Za-z][A-Za-z0-9._-]{0,99}",
        'at most 100 ASCII letters, digits, ".", "_" and "-", the first a letter, such as "web-2"',
    ),
]
"""The name of an eval set or an eval task: the names of its scores begin with it."""


class EvalSetConfig(Settings):
    """Text or a shard set, scored in bits per byte at each validation: [eval sets](experiments.md#eval-sets). Other
    keys are those of [a source](#a-data-recipe) (`kind`, `paths`, `repo`, `text`, ...)."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    name: EvalName
    """The score is `NAME_bpb`; names are distinct."""
    shards: Annotated[str, Field(min_length=1)] | None = None
    """A shard set with the run's tokenizer, a folder or an address, instead of a source."""
    split: Annotated[str, Field(min_length=1)] | None = None
    """With `shards`: by default `val` if the set has it, else `train`."""
    max_tokens: PositiveInt = 1_000_000
    """Whole documents are scored until this many tokens."""

    @property
    def source(self) -> dict[str, JsonValue]:
        """The keys in `[eval]` of an eval set that are those of a source of a data recipe."""
        split: dict[str, JsonValue] = {} if self.split is None else {"split": self.split}
        return {**(self.__pydantic_extra__ or {}), **split}

    @property
    def score_names(self) -> list[str]:
        """The names of the scores of an eval set in `[eval]`."""
        return [f"{self.name}_bpb"]


Column = Annotated[str, Field(min_length=1)]


COLUMNS = {"question", "choices", "answer", "labels", "prompt"}
"""Keys of an eval task for files of the user."""


class EvalTaskConfig(Settings):
    """Questions with choices, scored at each validation: [eval tasks](experiments.md#eval-tasks). Columns and prompt
    are for your files."""

    name: EvalName
    """The scores are `NAME_acc`, `NAME_acc_norm` (by the bytes of each choice) and `NAME_bpb` (of the right answer)."""
    task: EvalName | None = None
    """A known eval task, if `name` is another name."""
    files: list[str] = Field(default_factory=list)
    """Your Parquet files or JSON lines with the items."""
    num_fewshot: Annotated[int, Field(ge=0, le=100)] = 0
    """How many items with their right answers come before each question."""
    fewshot_files: list[str] = Field(default_factory=list)
    """Files of these; by default the split that lm-evaluation-harness uses."""
    limit: PositiveInt | None = None
    """Only the first items are scored."""
    question: Column = "question"
    """Column of the question."""
    choices: Column = "choices"
    """Column of the texts of the choices, a list."""
    answer: Column = "answer"
    """Column of the right choice: its label if `labels` is given, else its place from 0, or its text."""
    labels: Column | None = None
    """Column of the labels of the choices: `choices.label`."""
    prompt: Annotated[str, Field(min_length=1), in_form(r"(?s).*\{question\}.*", "text with {question} in it")] = (
        "Question: {question}\nAnswer:"
    )
    """The text before a choice; a space follows it."""

    @property
    def known(self) -> EvalTask | None:
        """The known eval task that `[eval]` names; None for one of the user's own."""
        return KNOWN_TASKS.get(self.task or self.name)

    @property
    def score_names(self) -> list[str]:
        """The names of the scores of an eval task in `[eval]`."""
        normalised = [] if self.known and not self.known.compares_texts else [f"{self.name}_acc_norm"]
        return [f"{self.name}_acc", *normalised, f"{self.name}_bpb"]

    def describe(self) -> EvalTask:
        """Return the eval task of `[eval]` whose rows have these columns."""
        return EvalTask(self.name, partial(self._ask, f"eval.tasks.{self.name}"))

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


class EvalConfig(Settings):
    """Validation, also done at the end of each phase and after the last step."""

    every_steps: PositiveInt = 250
    """Steps between validations."""
    max_tokens: PositiveInt = 1_000_000
    """Tokens of the val split that are predicted, from its start. Sources that begin after them are named."""
    prompts: list[Annotated[str, Field(min_length=0)]] = Field(default_factory=list)  # bounded: checks UTF-8
    """Prompts that the model continues at each phase's end, into `samples/` of the run folder."""

    sets: list[EvalSetConfig] = Field(default_factory=list[EvalSetConfig])
    """Text that is scored."""
    tasks: list[EvalTaskConfig] = Field(default_factory=list[EvalTaskConfig])
    """Questions that are scored."""

    @property
    def score_names(self) -> list[str]:
        """The names of the scores of all eval sets and tasks in `[eval]`, in order."""
        return [name for one in (*self.sets, *self.tasks) for name in one.score_names]


EVAL_PATH_KEYS = ("paths", "exclude", "shards", "files", "fewshot_files")
"""Keys of eval sets and tasks that name files: paths begin at the recipe's folder."""


def can_be_scored(config: EvalConfig) -> bool:
    """Return whether a partly read `[eval]` has its lists of sets and tasks: a list that was refused is NaN."""
    given: list[Any] = [config.sets, config.tasks]
    return all(isinstance(one, list) for one in given)


def check_eval(tables: Document) -> Iterator[str]:
    """Yield the faults between keys of the eval sets and tasks of an unvalidated `[eval]`."""
    # Each set has one place; the pipeline checks the keys of a source.
    config = read_partly(EvalConfig, tables.get("eval"))
    if not can_be_scored(config):
        return
    for one in config.sets:
        place, given = f"eval.sets.{one.name}", one.source.keys() - {"split"}
        if one.shards is not None and given:
            yield f"{place}: has shards, and {sorted(given)} of a source. Leave one out."
        elif one.shards is None and not given & {"paths", "repo"}:
            yield f'{place}: has no text. Give paths (kind = "files"), repo (kind = "hub"), or shards.'
        elif one.shards is not None and one.split not in (None, "train", "val"):
            yield f'{place}.split = {one.split!r}: expected "train" or "val", the splits of a shard set.'
    for one in config.tasks:
        yield from _check_eval_task(one)
    # Scores are told apart by name alone.
    for name, count in Counter(one.name for one in (*config.sets, *config.tasks)).items():
        if count > 1:
            yield f"eval: {count} eval sets and tasks are named {name!r}. Give each a unique name."


def _check_eval_task(one: EvalTaskConfig) -> Iterator[str]:
    # A known eval task has its own columns and splits; one of the user has files.
    place = f"eval.tasks.{one.name}"
    columns = sorted(one.model_dump(include=COLUMNS, exclude_defaults=True))
    if one.task is not None and one.known is None:
        yield f"{place}.task = {one.task!r}: no such eval task.{nearest(one.task, list(KNOWN_TASKS))}"
    elif one.known and columns:
        yield f"{place}.{columns[0]}: the columns of {one.known.name} are known. Leave it out, or change the name."
    elif not one.known and not one.files:
        known = nearest(one.name, list(KNOWN_TASKS))
        yield f"{place}: has no items, and no known eval task has this name.{known} Give files, or task."
    if not one.known and one.num_fewshot and not one.fewshot_files:
        yield f"{place}.num_fewshot = {one.num_fewshot}: the examples have no place. Give fewshot_files."
    if not one.num_fewshot and one.fewshot_files:
        yield f"{place}.fewshot_files: not used, because num_fewshot is 0. Give num_fewshot, or leave it out."


def find_eval_folder(file: Path, given: Path) -> Path:
    """Return the folder at which paths of eval sets in a recipe's file begin, from the path or name that was given.

    A recipe that was found by its name may be anywhere: its paths begin where they would in a checkout at the working
    directory.
    """
    return file.parent if file == Path(given) else Path("recipes/train")


def locate_eval_files(data: Document, folder: Path) -> None:
    """Let paths of eval sets and tasks in a raw recipe begin at the root; URLs, and values of a wrong type, stay."""

    def locate(value: Any) -> Any:
        if isinstance(value, list):
            return [locate(item) for item in cast("list[Any]", value)]
        return os.path.abspath(folder / value) if isinstance(value, str) and "://" not in value else value

    section = table_of(data.get("eval"))
    for _, table in [*named_tables(section, "sets"), *named_tables(section, "tasks")]:
        table.update({key: locate(table[key]) for key in EVAL_PATH_KEYS if key in table})


def find_value(row: Row, column: str) -> Any:
    """Return the value of a column that a key of `[eval]` names; dots descend into structs.

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

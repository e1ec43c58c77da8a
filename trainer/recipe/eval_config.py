"""The table `[eval]` of a train recipe: eval sets, eval tasks, the rules between their keys, the files they name."""

import os
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, NonNegativeInt, PositiveInt, ValidationInfo

from shards.config import Document, Seed, Settings, Share, Text, TypedText, in_form, shared_names, table_of
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
from shards.stores.parse import check_values
from shards.terminal.hints import nearest

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
    shards: Text | None = None
    """A shard set with the run's tokenizer, a folder or an address, instead of a source."""
    split: Text | None = None
    """With `shards`: by default `val` if the set has it, else `train`."""
    max_tokens: PositiveInt = 1_000_000
    """Whole documents are scored until this many tokens."""

    def rules(self) -> Iterator[str]:
        """Yield the faults of its place, of which it has one; the pipeline checks the keys of a source."""
        given = self.source.keys() - {"split"}
        if self.shards is not None and given:
            yield f"shards: stands beside {sorted(given)} of a source. Leave one out."
        elif self.shards is None and not given & {"paths", "repo"} and self.model_fields_set:
            yield 'shards: has no text. Give paths (kind = "files"), repo (kind = "hub"), or shards.'
        elif self.shards is not None and isinstance(self.split, str) and self.split not in ("train", "val"):
            yield f'split = {self.split!r}: expected "train" or "val", the splits of a shard set.'

    @property
    def source(self) -> dict[str, JsonValue]:
        """Its keys that are those of a source of a data recipe."""
        split: dict[str, JsonValue] = {} if self.split is None else {"split": self.split}
        return (self.__pydantic_extra__ or {}) | split

    @property
    def score_names(self) -> list[str]:
        """The names of its scores."""
        return [f"{self.name}_bpb"]


class EvalTaskConfig(Settings):
    """Questions with choices, scored at each validation: [eval tasks](experiments.md#eval-tasks). Columns and prompt
    are for your files."""

    name: EvalName
    """The scores are `NAME_acc`, `NAME_acc_norm` (by the bytes of each choice) and `NAME_bpb` (of the right answer)."""
    task: EvalName | None = None
    """A known eval task, if `name` is another name."""
    files: list[str] = []
    """Your Parquet files or JSON lines with the items."""
    num_fewshot: Annotated[int, Field(ge=0, le=100)] = 0
    """How many items with their right answers come before each question."""
    fewshot_files: list[str] = []
    """Files of these; by default the split that lm-evaluation-harness uses."""
    limit: PositiveInt | None = None
    """Only the first items are scored."""
    question: Text = "question"
    """Column of the question."""
    choices: Text = "choices"
    """Column of the texts of the choices, a list."""
    answer: Text = "answer"
    """Column of the right choice: its label if `labels` is given, else its place from 0, or its text."""
    labels: Text | None = None
    """Column of the labels of the choices: `choices.label`."""
    prompt: Annotated[str, in_form(r"(?s).*\{question\}.*", "text with {question} in it")] = (
        "Question: {question}\nAnswer:"
    )
    """The text before a choice; a space follows it."""

    def rules(self) -> Iterator[str]:
        """Yield the faults between the keys of an eval task."""
        # A known eval task has its own columns and splits; one of the user has files.
        if self.known:
            why = f"the columns of {self.known.name} are known. Leave it out, or change the name."
            yield from self.refuse(("question", "choices", "answer", "labels", "prompt"), why)
        elif isinstance(self.task, str):
            yield f"task = {self.task!r}: no such eval task.{nearest(self.task, list(KNOWN_TASKS))}"
        elif not self.files and isinstance(self.name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            known = nearest(self.name, list(KNOWN_TASKS))
            yield f"files: has no items, and no known eval task has this name.{known} Give files, or task."
        if not self.known and self.num_fewshot > 0 and not self.fewshot_files:
            yield f"num_fewshot = {self.num_fewshot}: the examples have no place. Give fewshot_files."
        if self.num_fewshot == 0 and self.fewshot_files:
            yield "fewshot_files: not used, because num_fewshot is 0. Give num_fewshot, or leave it out."

    @property
    def known(self) -> EvalTask | None:
        """The known eval task that it names; None for one of the user's own."""
        return KNOWN_TASKS.get(self.task or self.name)

    @property
    def score_names(self) -> list[str]:
        """The names of its scores."""
        normalised = [] if self.known and not self.known.compares_texts else [f"{self.name}_acc_norm"]
        return [f"{self.name}_acc", *normalised, f"{self.name}_bpb"]

    def describe(self) -> EvalTask:
        """Return the eval task whose rows have these columns."""
        return EvalTask(self.name, self._ask)

    def _ask(self, row: Row) -> Item:
        place = f"eval.tasks.{self.name}"

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


EVAL_GLOB_KEYS = ("paths", "exclude")
EVAL_PATH_KEYS = (*EVAL_GLOB_KEYS, "shards", "files", "fewshot_files")
"""Keys of eval sets and tasks that name files, some by globs: paths begin at the recipe's folder."""


def _locate_files(table: Any, info: ValidationInfo) -> Any:
    """Let the paths of a raw eval set or task begin at the root; URLs, and values of a wrong type, stay."""
    folder: Path | None = info.context
    if folder is None or not isinstance(table, dict):
        return table

    def locate(value: Any, key: str) -> Any:
        if isinstance(value, list):
            return [locate(item, key) for item in cast("list[Any]", value)]
        begin = os.path.abspath("." if isinstance(value, TypedText) else folder)
        begin = escape(begin) if key in EVAL_GLOB_KEYS else begin
        return os.path.abspath(os.path.join(begin, value)) if isinstance(value, str) and "://" not in value else value

    given = cast("Document", table)
    located = given | {key: locate(given[key], key) for key in EVAL_PATH_KEYS if key in given}
    check_values(located)  # the folder's name may be other bytes than UTF-8
    return located


LOCATED = BeforeValidator(_locate_files)
"""Of a table whose paths begin at the folder that is the context."""


class SamplingOptions(Settings):
    """How the tokens of samples are chosen; `tokenmill sample` has the same as flags."""

    max_new_tokens: PositiveInt = 100
    """Tokens of each text, at most."""
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.8
    """0 always takes the likeliest token."""
    top_k: NonNegativeInt = 0
    """Choose among this many of the likeliest tokens; 0 keeps all."""
    top_p: Share = 0.95
    """Choose among the likeliest tokens that reach this probability together, after `top_k`."""
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.1
    """Above 1, tokens that occurred are less likely."""
    seed: Seed = 1337
    """Decides the choices."""


class EvalConfig(Settings):
    """Validation, also done at the end of each phase and after the last step."""

    every_steps: PositiveInt = 250
    """Steps between validations."""
    max_tokens: PositiveInt = 1_000_000
    """Tokens of the val split that are predicted, from its start. Sources that begin after them are named."""
    prompts: list[str] = []
    """Prompts that the model continues at milestones and the ends of phases, into `samples/` of the run folder."""
    samples: SamplingOptions = SamplingOptions()
    """How their tokens are chosen."""

    sets: list[Annotated[EvalSetConfig, LOCATED]] = []
    """Text that is scored."""
    tasks: list[Annotated[EvalTaskConfig, LOCATED]] = []
    """Questions that are scored."""

    def rules(self) -> Iterator[str]:
        """Yield the names that several eval sets and tasks have: scores are told apart by name alone."""
        for name, count in shared_names([*self.sets, *self.tasks]):
            yield f"sets: {count} eval sets and tasks are named {name!r}. Give each a unique name."

    @property
    def score_names(self) -> list[str]:
        """The names of all scores, in order."""
        return [name for one in (*self.sets, *self.tasks) for name in one.score_names]


def find_value(row: Row, column: str) -> Any:
    """Return the value of a column that a key of `[eval]` names; dots descend into structs.

    Raises:
        ValueError: the row has no such column.
    """
    value: Any = row
    for part in column.split("."):
        columns = table_of(value)
        if part not in columns:
            raise ValueError(f"no column {column!r}; found {shorten([*columns])}")
        value = columns[part]
    return value

"""Runs as their folders tell them: the recipe, the metrics, which set and tokenizer, and what is odd about the run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shards.errors import InputError, plural
from shards.stores.files import hash_file
from shards.terminal.amounts import format_duration
from shards.terminal.display import JsonObject
from trainer.evaluation.scores import list_scores
from trainer.ledger import draw_up_bill
from trainer.metrics import METRICS_FILE, Record, last_record, read_lines
from trainer.recipe import TrainRecipe, load_train_recipe
from trainer.resume import describe_changes, list_keys
from trainer.run_folder import RECIPE_FILE, TOKENIZER_FILE, RunRecord, read_run_record


@dataclass(frozen=True)
class TrainingRun:
    """A training run as its folder tells it.

    Attributes:
        name: the folder's name, or its path where several runs have folders of one name.
        recipe: the resolved recipe; of keys that changed in the middle, the last values.
        record: the set that it is trained on, where it began, which keys changed in the middle.
        records: the lines of metrics.jsonl; each has `tokens`, those of the last step before it.
        tokenizer_sha256: of the tokenizer's file in the folder.
        is_cut: whether the last line of metrics.jsonl is cut off, by a crash or as the run is at work.
    """

    name: str
    folder: Path
    recipe: TrainRecipe
    record: RunRecord
    records: list[Record]
    tokenizer_sha256: str
    is_cut: bool

    def last(self, key: str) -> float | None:
        """Return the last value of a number of the metrics; None if no line has it."""
        return last_record(self.records, key).get(key)

    def draw_up_bill(self) -> list[JsonObject]:
        """Return what its phases have cost: the rows of `trainer.ledger`."""
        return draw_up_bill(self.recipe, self.records, self.record.parameters)

    def list_values(self) -> JsonObject:
        """Return the values of the recipe by key; of one that changed, each `value` and `from_step` in a list."""
        changed: dict[str, list[JsonObject]] = {}
        for change in self.record.changes:
            for key, (old, new) in change.keys.items():
                values = changed.setdefault(key, [{"from_step": 1, "value": old}])
                values.append({"from_step": change.after_step + 1, "value": new})
        return dict(list_keys(self.recipe.model_dump(mode="json"))) | changed

    def describe_changes(self) -> list[str]:
        """Return a text for each change of the recipe in the middle of the run."""
        return [
            f"from step {change.after_step + 1:,}: {', '.join(describe_changes(change.keys))}"
            for change in self.record.changes
        ]

    def describe_oddities(self) -> list[str]:
        """Return what is odd: that it began from another run, has not ended, or lacks something."""
        notes: list[str] = []
        if self.recipe.train.rehearsal:
            notes.append("is a rehearsal: its model is tiny, and its figures say nothing of the real run")
        if self.record.start is not None:
            notes.append(f"began from {self.record.start}; its steps, tokens, time and dollars include that run's")
        if self.record.weights is not None:
            notes.append(f"began with the weights of {self.record.weights}, whose time and dollars are not in its own")
        step, steps = self.records[-1]["step"], self.recipe.train.steps
        if step < steps:
            notes.append(f"is at step {step:,} of {steps:,}: it stopped, or is still going")
        if not list_scores(self.records):
            notes.append("was never validated")
        if (idle := self.record.idle_seconds) >= 60:
            usd = self.recipe.cost.gpu_usd_per_hour * idle / 3600
            cost = f": ${usd:,.2f} for each GPU that was paid for meanwhile" if usd else ""
            notes.append(f"spent {format_duration(idle)} starting and between its processes, not in its cost{cost}")
        if self.is_cut:
            notes.append(f"has a last line of {METRICS_FILE} that is cut off, and left out")
        return notes


def read_run(folder: Path) -> TrainingRun:
    """Read a run from its folder; it may be at work.

    Raises:
        InputError: it is not the folder of a run, no step is logged yet, or a file of it is damaged.
        OSError: a file of it cannot be read.
    """
    about = read_run_record(folder)
    records, is_cut = read_lines(folder)
    recipe = load_train_recipe(folder / RECIPE_FILE)
    if not any(record.keys() & {"loss", "val_loss"} for record in records):
        raise InputError(f"{folder / METRICS_FILE}: no step is logged yet; nothing to draw or to compare")
    # A validation line does not say its tokens: they are those of the step before it.
    tokens = 0
    for record in records:
        tokens = record.setdefault("tokens", tokens)
    return TrainingRun(
        name=folder.resolve().name,
        folder=folder,
        recipe=recipe,
        record=about,
        records=records,
        tokenizer_sha256=hash_file(folder / TOKENIZER_FILE),
        is_cut=is_cut,
    )


def read_runs(folders: Sequence[Path]) -> list[TrainingRun]:
    """Read several runs from their folders, each under a name of its own.

    Raises:
        InputError: a folder is given twice or is not that of a run; with every reason.
    """
    places = Counter(folder.resolve() for folder in folders)
    problems = [
        f"{place}: is given {plural(count, 'time')}. Expected each run once."
        for place, count in places.items()
        if count > 1
    ]
    runs: list[TrainingRun] = []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except InputError as error:
            problems += map(str, error.problems)
    if problems:
        raise InputError(problems)
    # Runs whose folders have one name go by their paths.
    names = Counter(run.name for run in runs)
    return [run if names[run.name] == 1 else replace(run, name=str(run.folder)) for run in runs]

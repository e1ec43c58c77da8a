"""The small files of a run folder, by name.

RUN/recipe.json      the resolved recipe
RUN/run.json         the set that the run is trained on, where it began, and which keys of its recipe changed later
RUN/tokenizer.json   a copy of the set's
RUN/metrics.jsonl    `trainer.metrics`
RUN/checkpoints/     `trainer.checkpoint`
RUN/samples/         texts drawn at the ends of phases
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from shards.config import Settings, in_form, load_settings
from shards.errors import InputError

RECIPE_FILE = "recipe.json"
TOKENIZER_FILE = "tokenizer.json"
RUN_FILE = "run.json"
SAMPLES_FOLDER = "samples"


class RecipeChange(Settings):
    """Keys of a run's recipe that changed when it was resumed, or began from another run."""

    after_step: Annotated[int, Field(ge=1, le=1 << 53)]
    """The last step that had the values before."""
    keys: dict[str, Annotated[list[Any], Field(min_length=2, max_length=2)]]
    """By its dotted key, the value before, and the one from the next step on; null: the recipe has no such key."""


class RunRecord(Settings):
    """`run.json`: what a run's recipe does not say."""

    shards: Annotated[str, in_form("[^\0\ud800-\udfff]{1,4095}", "the folder or the address of a set")]
    """The folder of the set that it is trained on, absolute, or its address in a remote store; it may have moved."""
    manifest_sha256: str
    start: str | None = None
    """The folder of the checkpoint of another run that it began from, absolute; it may be gone. None: from step 0."""
    changes: list[RecipeChange] = Field(default_factory=list[RecipeChange])
    """In the order of steps."""


def check_run_folder(run: Path) -> None:
    """Refuse a run's folder that holds other files than those of a scheduler, and no run.

    Raises:
        InputError: it does.
    """
    names = {path.name for path in run.glob("[!.]*") if path.suffix not in (".log", ".out", ".err")}
    if names and not names & {RECIPE_FILE, TOKENIZER_FILE, "metrics.jsonl", "checkpoints"}:
        raise InputError(f"{run}: holds {min(names)!r}, and no training run. Give --run a folder of its own.")


def find_run_record(run: Path) -> RunRecord | None:
    """Read the record in the folder of a run that begins or resumes; None if it has none.

    Raises:
        InputError: the file is not such a record.
    """
    file = run / RUN_FILE
    try:
        return load_settings(RunRecord, file) if file.is_file() else None
    except InputError as error:
        remedy = "Restore it, or delete it: a run resumes without it, and forgets where it began and what was changed."
        raise InputError([*error.problems, f"{file}: {remedy}"]) from error


def read_run_record(run: Path) -> RunRecord:
    """Read the record in a run's folder.

    Raises:
        InputError: the file is missing, or is not such a record.
    """
    if not (run / RUN_FILE).is_file():
        raise InputError(f"{run / RUN_FILE}: is missing. Expected the whole folder of a training run.")
    return load_settings(RunRecord, run / RUN_FILE)

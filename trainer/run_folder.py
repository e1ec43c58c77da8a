"""The small files of a run folder, by name: the recipe, the tokenizer, and which set the run was trained on.

RUN/recipe.json      the resolved recipe
RUN/changes.json     the keys of it that another step than the first one had first; absent if there are none
RUN/tokenizer.json   a copy of the set's
RUN/set.json         where the set was, and the digest of its manifest
RUN/start.json       the checkpoint of another run that this run began from; absent if it began from step 0
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
SET_FILE = "set.json"
START_FILE = "start.json"
CHANGES_FILE = "changes.json"
SAMPLES_FOLDER = "samples"


class SetRecord(Settings):
    """`set.json`: the set that a run is trained on."""

    path: Annotated[str, in_form("[^\0\ud800-\udfff]{1,4095}", "the folder or the address of a set")]
    """The set's folder, absolute, or its address in a remote store; it may have moved since."""
    manifest_sha256: str


class StartRecord(Settings):
    """`start.json`: the checkpoint of another run that a run began from."""

    checkpoint: str
    """Its folder, absolute; it may be gone since."""


class RecipeChange(Settings):
    """Keys of a run's recipe that changed when it was resumed, or began from another run."""

    after_step: Annotated[int, Field(ge=1, le=1 << 53)]
    """The last step that had the values before."""
    keys: dict[str, Annotated[list[Any], Field(min_length=2, max_length=2)]]
    """By its dotted key, the value before, and the one from the next step on; null: the recipe has no such key."""


class ChangesRecord(Settings):
    """`changes.json`: what changed, in the order of steps."""

    changes: list[RecipeChange]


def check_run_folder(run: Path) -> None:
    """Refuse a run's folder that holds other files than those of a scheduler, and no run.

    Raises:
        InputError: it does.
    """
    names = {path.name for path in run.glob("[!.]*") if path.suffix not in (".log", ".out", ".err")}
    if names and not names & {RECIPE_FILE, TOKENIZER_FILE, "metrics.jsonl", "checkpoints"}:
        raise InputError(f"{run}: holds {min(names)!r}, and no training run. Give --run a folder of its own.")


def read_changes(run: Path) -> list[RecipeChange]:
    """Read from a run folder what changed in the recipe, in the order of steps.

    Raises:
        InputError: the file is not such a record.
    """
    file = run / CHANGES_FILE
    return load_settings(ChangesRecord, file).changes if file.exists() else []


def read_start_record(run: Path) -> StartRecord | None:
    """Read from a run folder the record of the checkpoint that it began from; None if it began from step 0.

    Raises:
        InputError: the file is not such a record.
    """
    file = run / START_FILE
    return load_settings(StartRecord, file) if file.exists() else None


def read_set_record(run: Path) -> SetRecord:
    """Return the record of the set that a run was trained on.

    Raises:
        InputError: the file is missing, or is not such a record.
    """
    file = run / SET_FILE
    if not file.is_file():
        raise InputError(f"{file}: is missing. Expected the whole folder of a training run.")
    return load_settings(SetRecord, file)

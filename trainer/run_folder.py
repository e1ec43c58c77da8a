"""The small files of a run folder, by name: the recipe, the tokenizer, and which set the run was trained on.

RUN/recipe.json      the resolved recipe
RUN/tokenizer.json   a copy of the set's
RUN/set.json         where the set was, and the digest of its manifest
RUN/start.json       the checkpoint of another run that this run began from; absent if it began from step 0
RUN/metrics.jsonl    `trainer.metrics`
RUN/checkpoints/     `trainer.checkpoint`
RUN/samples/         texts drawn at the ends of phases
"""

from __future__ import annotations

from pathlib import Path

from shards.config import Settings, load_settings
from shards.errors import InputError

RECIPE_FILE = "recipe.json"
TOKENIZER_FILE = "tokenizer.json"
SET_FILE = "set.json"
START_FILE = "start.json"
SAMPLES_FOLDER = "samples"


class SetRecord(Settings):
    """`set.json`: the set that a run is trained on."""

    path: str
    """The set's folder, absolute, or its address in a remote store; it may have moved since."""
    manifest_sha256: str


class StartRecord(Settings):
    """`start.json`: the checkpoint of another run that a run began from."""

    checkpoint: str
    """Its folder, absolute; it may be gone since."""


def read_start_record(run: Path) -> StartRecord | None:
    """Read from a run folder the record of the checkpoint that it began from; None if it began from step 0.

    Raises:
        InputError: the file is not such a record.
    """
    file = run / START_FILE
    return load_settings(StartRecord, file) if file.is_file() else None


def read_set_record(run: Path) -> SetRecord:
    """Return the record of the set that a run was trained on.

    Raises:
        InputError: the file is missing, or is not such a record.
    """
    file = run / SET_FILE
    if not file.is_file():
        raise InputError(f"{file}: is missing. Expected the whole folder of a training run.")
    return load_settings(SetRecord, file)

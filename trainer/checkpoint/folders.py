"""The folders of checkpoints and their files other than tensors: names, state, checksums. Needs no torch."""

import hashlib
import operator
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash
from pydantic import Field

from shards.config import Settings, check_settings, table_of
from shards.errors import InputError, Problem, remedy_of
from shards.format.manifest import LEFT_OUT, ChatEntry
from shards.stores.files import delete_path, open_named, read_file
from shards.stores.parse import load_json
from shards.terminal.reporter import Note
from trainer.recipe import TrainRecipe
from trainer.recipe.schema import Count, Size

FOLDER = "checkpoints"
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
CHECKSUMS_FILE = "checksums.json"
VERSION = 3
"""Of checkpoints. It changes with the order of the windows, too: a checkpoint counts windows."""
_NAME = re.compile(r"step-[0-9]{8,}")


MAX_STATE_BYTES = 1 << 24
"""A larger state, or file of checksums, is refused before it is read."""


class CheckpointState(Settings):
    """The state of a checkpoint without its tensors."""

    format: Literal["tokenmill-checkpoint"] = "tokenmill-checkpoint"
    format_version: Literal[3] = VERSION
    step: Count
    """Optimizer steps done."""
    samples: Count
    """Windows consumed: the loader's whole state, together with the manifest's digest."""
    targets: Count = Field(default=0, exclude_if=operator.not_)
    """Targets of packed rows so far."""
    seconds: float = Field(default=0.0, ge=0, le=1e12)
    """Seconds that the run has taken so far; its cost is computed from them."""
    recipe: dict[str, Any]
    vocab_size: Size
    eos_id: Count
    bos_id: Count | None = LEFT_OUT
    chat: ChatEntry | None = LEFT_OUT
    untrained: list[Count] = Field(default=[], exclude_if=operator.not_)
    """The ids of special tokens that no text of the training so far has had."""
    manifest_sha256: str
    tokenizer_sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose files match their checksums."""

    path: Path
    state: CheckpointState

    @property
    def run(self) -> Path:
        """The folder of the run that wrote it, absolute."""
        return locate_checkpoint(self.path).parent.parent

    @property
    def recipe(self) -> TrainRecipe:
        """The recipe of the process that wrote it.

        Raises:
            InputError: this version does not know such a recipe.
        """
        return check_settings(TrainRecipe, self.state.recipe, where=f"{self.path / STATE_FILE}: recipe")


def checkpoint_path(run: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return run / FOLDER / f"step-{step:08d}"


def locate_checkpoint(path: str | Path) -> Path:
    """Return the absolute path of a checkpoint in its run: it, or the folder of all, may be a link to another disk."""
    named = Path(path).absolute()
    if named.parent.name != FOLDER:  # a link from elsewhere
        return Path(os.path.realpath(path))
    return Path(os.path.realpath(named.parent.parent), FOLDER, named.name)


def step_of_checkpoint(path: Path) -> int:
    """Return the step in the name of a checkpoint's folder."""
    return int(path.name.removeprefix("step-"))


def list_checkpoints(run: Path) -> list[Path]:
    """Return a run's checkpoint folders, oldest first. Temporary and corrupt ones have other names."""
    folder = run / FOLDER
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.exists() else []
    return sorted(found, key=step_of_checkpoint)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's folder: its state, with every file's checksum checked; no tensor is loaded yet.

    Raises:
        InputError: it is missing, half-written or corrupt; the message names the file.
    """
    try:
        # The file of checksums is written last: without it the checkpoint is half written.
        expected = table_of(_load(path / CHECKSUMS_FILE))
        for name, checksum in hash_files(path).items():
            if expected.get(name) != checksum:
                raise InputError(f"{path / name}: corrupt: its checksum {checksum} is not in {CHECKSUMS_FILE}")
        return Checkpoint(path, read_state(path))
    except OSError as error:
        if remedy_of(error):
            raise
        raise InputError(f"{error.filename}: cannot be read ({error.strerror}): no complete checkpoint") from error


def read_state(path: Path) -> CheckpointState:
    """Read the state in a checkpoint's folder alone; no checksum is checked.

    Raises:
        InputError: it is not a state, or one of another version, or its step differs from the folder's name.
        OSError: it cannot be read.
    """
    file = path / STATE_FILE
    content = _load(file)
    if (version := table_of(content).get("format_version", VERSION)) != VERSION:
        raise InputError(
            f"{file}: a checkpoint of version {version!r:.80}; expected version {VERSION}. Continue with the "
            "Tokenmill that wrote it, or train in a new run folder."
        )
    state = check_settings(CheckpointState, content, where=f"{file}: not the state of a checkpoint")
    if _NAME.fullmatch(path.name) and step_of_checkpoint(path) != state.step:
        raise InputError(f"{file}: step {state.step}; expected that of the folder's name")
    return state


def _load(file: Path) -> Any:
    try:
        return load_json(read_file(file, MAX_STATE_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: corrupt: {error}") from error


def find_newest_checkpoint(run: Path, say: Note) -> Checkpoint | None:
    """Return a run's newest whole checkpoint; None if the run has no checkpoints at all. Changes nothing.

    Args:
        run: the run folder.
        say: called with a message for each corrupt checkpoint that is newer.

    Raises:
        InputError: there are checkpoints, and every one is corrupt.
    """
    problems: list[str | Problem] = []
    # The newest that is whole; the corrupt ones on the way are told.
    for path in reversed(list_checkpoints(run)):
        try:
            return read_checkpoint(path)
        except InputError as error:
            say(f"{str(error).rstrip('.')}. Trying the previous checkpoint.")
            problems.extend(error.problems)
    if problems:
        raise InputError([*problems, f"{run}: no complete checkpoint is left. Start again in a new run folder."])
    return None


def delete_older(run: Path, *, keep_last: int, keep_steps: Collection[int]) -> None:
    """Delete a run's checkpoints but the last `keep_last` and those of `keep_steps`; of a link, the link alone.

    Raises:
        OSError: one cannot be renamed, to be deleted.
    """
    for old in list_checkpoints(run)[:-keep_last]:
        if step_of_checkpoint(old) not in keep_steps:
            # It is renamed first, so that a crash while it is deleted leaves no half of a checkpoint.
            delete_path(old.rename(old.with_name(f".{old.name}.deleted")))


def clear_leftovers(run: Path, *, after_step: int) -> list[Path]:
    """Delete the folders of crashed saves, and rename corrupt checkpoints to `corrupt-step-...`.

    Args:
        run: the run folder.
        after_step: every checkpoint after this step is corrupt.

    Returns:
        The new names of the corrupt ones.
    """
    # A crash leaves a temporary folder, which no one reads.
    for left in (run / FOLDER).glob(".step-*"):
        delete_path(left)
    moved: list[Path] = []
    for path in list_checkpoints(run):
        if step_of_checkpoint(path) > after_step:
            # Kept under another name: someone may want to look.
            target = path.with_name(f"corrupt-{path.name}")
            delete_path(target)
            moved.append(path.rename(target))
    return moved


def hash_files(folder: Path) -> dict[str, str]:
    """Return the hex xxh3-128 of each file of a checkpoint by name, without the file of checksums."""
    digests: dict[str, str] = {}
    for name in (MODEL_FILE, OPTIMIZER_FILE, STATE_FILE):
        with open_named(folder / name) as file:
            digests[name] = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
    return digests

"""The last mix of a work folder, noted there by the build for `clean-report` and `trace --hash`.

The note names the mix task, the runs that it read in their order, their tokenizer, the recipe, and the set that came of
it. The runs' own list is pruned when nothing is mixed again, so it cannot serve. The recipe's paths begin at the root.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.builder.running_build import RunningBuild
from pipeline.encode.run import Run, RunList
from pipeline.engine.checksums import seal, unseal
from pipeline.engine.receipts import WorkFileDamagedError
from pipeline.recipe.schema import Recipe
from pipeline.tokenizer.encoder import TokenizerInfo
from shards.errors import InputError, RunError
from shards.stores.store import WritableStore

LAST_FILE = "last-mix.json"
"""In the folder of the mix stage."""


@dataclass(frozen=True)
class LastMix:
    """The record of the last mix in a work folder."""

    work: WritableStore
    mix: str
    """The digest of the mix task."""
    dtype: str
    """Of the runs' tokens."""
    sources: tuple[int, ...]
    """The source of each run."""
    digests: tuple[str, ...]
    """The digest of each run, in the order of the mix."""
    unread: tuple[bool, ...]
    """For each source, whether parts of it were not read."""
    tokenizer: str
    """The `tokenizer.json` of the runs."""
    tokenizer_task: str | None
    """The digest of the task that trained it; None if the recipe names the file."""
    evaluations: str | None
    """The digest of the task that read the evaluation sets; None if the recipe names none."""
    recipe: Recipe = field(repr=False)
    manifest: str | None = None
    """SHA-256 of the manifest of the set made from it; None if the build stopped before."""

    @property
    def folder(self) -> WritableStore:
        """The folder of the mix task."""
        return self.work.child("mix").child(self.mix)

    def run(self, number: int) -> Run:
        """Return a run, whose receipt is read when it is used."""
        return Run(str(self.work.child("encode").child(self.digests[number])), self.sources[number], self.dtype)


def note_mix(
    running: RunningBuild,
    mix: str,
    recipe: Recipe,
    runs: RunList,
    tokenizer: TokenizerInfo,
    evaluations: WritableStore | None,
) -> None:
    """Note a mix in the work folder; leave the note alone if it is of this very mix.

    Args:
        running: the build.
        mix: the digest of the mix task.
        recipe: the recipe.
        runs: the runs that were mixed.
        tokenizer: their tokenizer.
        evaluations: the folder of the task that read the evaluation sets; None if there are none.
    """
    note = {
        "mix": mix,
        "dtype": runs.runs[0].dtype if runs.runs else "<u2",
        "sources": [run.source for run in runs.runs],
        "digests": [run.digest for run in runs.runs],
        "unread": [selection.has_more for selection in running.selections],
        "tokenizer": tokenizer.path,
        "tokenizer_task": tokenizer.task and tokenizer.task.rpartition("/")[2],
        "evaluations": evaluations and str(evaluations).rpartition("/")[2],
        "recipe": json.loads(recipe.moved_to(Path("/")).to_json()),
    }
    running.used["mix"].add(LAST_FILE)
    if _read_whole(running.work) | {"manifest": None} != note | {"manifest": None}:
        _write(running.work, note)


def note_set(work: WritableStore, manifest: str) -> None:
    """Note the SHA-256 of the manifest of the set made from the last mix."""
    note = _read_whole(work)
    if note and note.get("manifest") != manifest:
        _write(work, note | {"manifest": manifest})


def read_last_mix(work: WritableStore) -> LastMix:
    """Return what a work folder says of its last mix.

    Raises:
        InputError: it says nothing that this version understands.
        WorkFileDamagedError: it is not as it was written.
    """
    note = _read(work)
    if note is None:
        found = "no build here has mixed"
        if next(work.list(), None) is None:
            found = "is empty" if work.folder is None or work.folder.is_dir() else "no such folder"
        raise InputError(
            f"{work}: {found}. Give the work folder of a build (--work), by default OUT.work. If an earlier version of "
            "tokenmill made it, run the same build command again: it encodes nothing."
        )
    try:
        return LastMix(
            work,
            note["mix"],
            note["dtype"],
            tuple(note["sources"]),
            tuple(note["digests"]),
            tuple(note["unread"]),
            note["tokenizer"],
            note["tokenizer_task"],
            note["evaluations"],
            Recipe.model_validate(note["recipe"]).in_folder(Path("/")),
            note.get("manifest"),
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise InputError(
            f"{work}/mix/{LAST_FILE}: {type(error).__name__}: {error}. Run the same build command again: it "
            "writes this file again."
        ) from error


@contextmanager
def last_mix_errors() -> Generator[None]:
    """Say that a build repairs damage to a work folder, if the command that found the damage cannot.

    Raises:
        RunError: in the place of a WorkFileDamagedError.
    """
    try:
        yield
    except WorkFileDamagedError as error:
        raise RunError(
            f"{error.where}: {error.reason}. Run the build command again: it repairs what is missing or damaged."
        ) from error


def _read(work: WritableStore) -> dict[str, Any] | None:
    """Return the note, or None if there is none.

    Raises:
        WorkFileDamagedError: it is not as it was written.
    """
    stage = work.child("mix")
    try:
        return unseal(stage.read(LAST_FILE))
    except OSError:
        return None
    except ValueError as error:
        raise WorkFileDamagedError(str(stage), LAST_FILE, str(error)) from error


def _read_whole(work: WritableStore) -> dict[str, Any]:
    """Return the note; nothing if there is none or it is damaged: a build writes it again."""
    try:
        return _read(work) or {}
    except WorkFileDamagedError:
        return {}


def _write(work: WritableStore, note: dict[str, Any]) -> None:
    work.child("mix").put(LAST_FILE, seal(note))

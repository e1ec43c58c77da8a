"""Build: from a recipe to a validated shard set, stage by stage. A re-run does only what is missing.

    sources --units--> encode --runs sorted by content hash--> mix --cut keys--> assemble --> shard set
       \\__ sample __> tokenizer __/   ^------ more units -------'

The set's bytes depend on the recipe and the data alone: not on the number of workers, on interruptions, or on time.
The stages are in `pipeline.build.stages`; only the work folder's build.json holds times.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.build.context import BuildContext
from pipeline.build.publish import OutputError, check_output, publish
from pipeline.build.stages import run_assemble, run_encode_and_mix, run_fetch
from pipeline.build.tokenizer import TokenizerChoice, run_tokenizer
from pipeline.engine.attempts import delete_path
from pipeline.engine.driver import Driver, StageResult
from pipeline.engine.executors import Executor
from pipeline.engine.progress import Progress
from pipeline.recipe.schema import Recipe
from pipeline.sources.hub import pin_revisions
from pipeline.sources.selection import Unread, open_sources
from shards.format.manifest import Manifest
from shards.stores.files import atomic_open, lock_folder
from shards.stores.store import FolderStore
from shards.validation.validate import Level, ValidationResult, validate

_WORK_NAME = re.compile(
    r"fetch|tokenizer|encode|mix|assemble|cache|build\.json|revisions\.json|encoder-[0-9a-f]{16}\.json|\..+\.tmp"
)


@dataclass(frozen=True)
class BuildResult:
    """The result of a build."""

    manifest: Manifest
    validation: ValidationResult
    stages: dict[str, StageResult]
    unread: dict[str, Unread]
    """The unread parts of each source, by name."""
    notes: tuple[str, ...]
    seconds: float

    @property
    def tasks_run(self) -> int:
        """Tasks that were not already done."""
        return sum(stage.ran for stage in self.stages.values())

    @property
    def text_bytes(self) -> int:
        """Bytes of text that were encoded, now or before."""
        return sum(result["text_bytes"] for result in self.stages["encode"].results)


def build(
    recipe: Recipe,
    *,
    out: Path,
    work: Path,
    executor: Executor,
    progress: Progress,
    level: Level = "full",
    tokenizer_choice: TokenizerChoice = "recipe",
) -> BuildResult:
    """Build a shard set.

    Args:
        recipe: what to build.
        out: the set's folder; created, and cleared of an earlier version of the same set.
        work: scratch, receipts and build.json; keep it to make re-runs cheap.
        executor: where the tasks run.
        progress: shows the stages and prints notes.
        level: how the finished set is validated. After a build that ran no task, the level is "quick".
        tokenizer_choice: "keep": use the tokenizer in the work folder, even if the sources' files have changed.

    Raises:
        SourceError, TokenizerError, MixError, DiskError, OutputError, FolderBusyError: as their names say.
        OSError: the disk filled up, or cannot be written; run again to go on.
    """
    # Check the folders and list the sources; nothing is written yet.
    started = time.perf_counter()
    check_output(out, recipe)
    _check_work(work)
    recipe = pin_revisions(recipe, work)
    selections = open_sources(recipe)
    with _locked(work, out):
        # Run the stages.
        units = [selection.units for selection in selections]
        context = BuildContext(units, out, Driver(FolderStore(work), executor, progress), selections)
        run_fetch(context, recipe)
        tokenizer, recipe = run_tokenizer(context, recipe, tokenizer_choice)
        runs, encoded, mixed, mix_folder = run_encode_and_mix(context, recipe, tokenizer)
        entries = run_assemble(context, recipe, tokenizer, mixed, runs, mix_folder)

        # Write the manifest, and delete what an earlier recipe left.
        unread = {selection.source.name: selection.unread() for selection in selections}
        manifest = publish(
            out,
            recipe=recipe,
            tokenizer=tokenizer,
            plan=mixed,
            runs=runs.runs,
            encoded=encoded,
            unread=list(unread.values()),
            shards=entries,
        )
        _prune(context)

        # Validate the finished set.
        level = level if any(stage.ran for stage in context.stages.values()) else "quick"
        validating = time.perf_counter()
        validation = validate(out, level=level, threads=min(executor.workers, len(os.sched_getaffinity(0))))
        now = time.perf_counter()
        progress.note(f"validate: {level} level in {now - validating:.1f} s")
        report = BuildResult(manifest, validation, context.stages, unread, tuple(context.notes), now - started)
        _write_times(work, executor.workers, report, validating=now - validating)
    return report


def _check_work(work: Path) -> None:
    """Refuse a folder with files that are not an earlier build's: pruning, or the user, would delete them."""
    names = [path.name for path in work.iterdir()] if work.is_dir() else []
    if foreign := sorted(name for name in names if not _WORK_NAME.fullmatch(name)):
        listed = ", ".join(foreign[:5])
        raise OutputError(
            f"{work}: holds files that are not a build's work: {listed}. Choose an empty folder for --work."
        )


@contextmanager
def _locked(work: Path, out: Path) -> Generator[None]:
    if work.resolve().is_relative_to(out.resolve()):
        raise OutputError(f"{work}: the work folder lies in the set's folder. Choose another --work.")
    with ExitStack() as stack:
        for folder in (work, out):
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise OutputError(f"{folder}: no permission to write. Choose another folder, or change its mode.")
            stack.enter_context(lock_folder(folder))
        try:
            yield
        finally:
            _remove_empty(work, out)  # a build that failed early leaves no empty folders


def _remove_empty(work: Path, out: Path) -> None:
    for folder in (*work.iterdir(), work, out):
        with suppress(OSError):  # not empty, or a file
            folder.rmdir()


def _prune(context: BuildContext) -> None:
    """Delete the work of earlier versions of the recipe that this build does not use."""
    for stage, used in context.used.items():
        for path in (context.work / stage).iterdir():
            if path.name not in used:
                delete_path(path)
    for path in context.work.glob("encoder-*.json"):  # of version 0.1.0
        path.unlink()


def _write_times(work: Path, workers: int, report: BuildResult, *, validating: float) -> None:
    times = {
        "seconds": report.seconds,
        "workers": workers,
        "text_bytes": report.text_bytes,
        "stages": {name: stage.summary() for name, stage in report.stages.items()},
        "validate": {"level": report.validation.level, "seconds": validating},
    }
    with atomic_open(work / "build.json") as file:
        file.write((json.dumps(times, indent=2) + "\n").encode())

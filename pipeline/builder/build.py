"""Build: from a recipe to a validated shard set, stage by stage. A re-run does only what is missing.

    sources --units--> encode --runs sorted by content hash--> mix --cut keys--> assemble --> shard set
       \\__ sample __> tokenizer __/   ^------ more units -------'

The set's bytes depend on the recipe and the data alone: not on the number of workers, on interruptions, or on time.
The stages are in `pipeline.builder.stages`; only the work folder's build.json holds times.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.builder.kept import KEPT_BYTES, choose_kept
from pipeline.builder.last_mix import note_set
from pipeline.builder.publish import OutputError, check_output, publish
from pipeline.builder.records import read_records, write_records
from pipeline.builder.running_build import DryRunEnd, RunningBuild
from pipeline.builder.stages.assemble import run_assemble
from pipeline.builder.stages.evaluations import run_evaluations
from pipeline.builder.stages.fetch import needs_fetch, run_fetch
from pipeline.builder.stages.mix import run_encode_and_mix
from pipeline.builder.stages.tokenizer import TokenizerChoice, run_tokenizer
from pipeline.builder.stages.validation import run_validation
from pipeline.clean.personal_data import MaskedCounts, count_masked
from pipeline.encode.run import RunList
from pipeline.engine.driver import Driver, StageResult
from pipeline.engine.executors import Executor
from pipeline.engine.lease import Lease
from pipeline.engine.stage_progress import Progress
from pipeline.recipe.schema import Recipe
from pipeline.sources.carried_columns import merge_carried
from pipeline.sources.hub import pin_revisions
from pipeline.sources.selection import Unread, open_sources
from pipeline.sources.span_cache import SpanCache
from shards.errors import plural
from shards.format.manifest import MANIFEST_FILE, Manifest
from shards.stores.files import delete_path, lock_folder
from shards.stores.open import open_writable_store
from shards.stores.probe import probe, require_abilities
from shards.stores.store import WritableStore
from shards.validation.validate import Level, ValidationResult, validate

SUMMARY_FILE = "build.json"
"""Of the last build: its times, and the SHA-256 of the manifest of the set that it found valid in full."""
_WORK_NAME = re.compile(
    r"fetch|tokenizer|evaluations|encode|bands|pairs|similar|mix|assemble|validate|cache|build\.json|revisions\.json|spans\.json|stages\.json"
    r"|encoder-[0-9a-f]{16}\.json|\..+\.tmp"
)


@dataclass(frozen=True)
class BuildResult:
    """The result of a build."""

    manifest: Manifest
    validation: ValidationResult
    stages: dict[str, StageResult]
    unread: dict[str, Unread]
    """The unread parts of each source, by name."""
    empty: dict[str, list[str]]
    """The files that hold no record, of each source that has any, by name."""
    masked: dict[str, MaskedCounts]
    """Masked hits in the documents of each source, by name; only sources with any."""
    notes: tuple[str, ...]
    seconds: float

    def __repr__(self) -> str:
        found = plural(len(self.validation.problems), "problem")
        return f"<BuildResult of {self.manifest.summary}; {plural(self.tasks_run, 'task')} run, {found}>"

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
    out: str | Path,
    work: str | Path,
    executor: Executor,
    progress: Progress,
    level: Level = "full",
    tokenizer_choice: TokenizerChoice = "recipe",
    scratch: Path | None = None,
    dry_run: bool = False,
    keep_bytes: int = KEPT_BYTES,
) -> BuildResult:
    """Build a shard set.

    Args:
        recipe: what to build.
        out: the set's folder, or its address in an object store; cleared of an earlier version of the same set.
        work: runs, receipts and build.json, in a folder or an object store; keep it to make re-runs cheap.
        executor: where the tasks run.
        progress: shows the stages and prints notes.
        level: how the finished set is validated. If this very set has been found valid in full before, and no task
            ran, the level is "quick".
        tokenizer_choice: "keep": use the tokenizer in the work folder, even if the sources' files have changed.
        scratch: where tasks write, on the machine that runs them; None: next to their files if these are in a folder,
            else in the system's folder for temporary files.
        dry_run: run, lock and write nothing: say what the build would run, by raising `DryRunEnd`.
        keep_bytes: the most disk in the work folder that the results of the set published before may take.

    Raises:
        DryRunEnd: with `dry_run`.
        SourceError, TokenizerError, MixError, DiskError, OutputError, FolderBusyError: as their names say.
        StoreError: an object store cannot be used, or lacks what a build needs.
        LeaseLostError: another build has taken over the place.
        OSError: the disk filled up, or cannot be written; run again to go on.
    """
    # Check the places and list the sources; nothing is written yet.
    started = time.perf_counter()
    out_store, work_store = open_writable_store(out), open_writable_store(work)
    _check_places(out_store, work_store, recipe, probing=not dry_run)
    recipe = pin_revisions(recipe, work_store, keep=not dry_run)
    selections = open_sources(recipe, span_cache := SpanCache(work_store))
    with nullcontext(lambda: None) if dry_run else _held(work_store, out_store) as check:
        # Run the stages.
        units = [selection.units for selection in selections]
        driver = Driver(
            work_store, executor, progress, scratch=str(scratch.absolute()) if scratch else None, check=check
        )
        records = read_records(work_store)
        running = RunningBuild(units, out_store, driver, selections, records=records, dry_run=dry_run)
        running.keep_bytes = keep_bytes
        evaluations = run_evaluations(running, recipe)
        run_fetch(running, recipe)
        tokenizer, recipe = run_tokenizer(running, recipe, tokenizer_choice)
        if not dry_run:
            span_cache.save()
        runs, encoded, mixed, mix_folder = run_encode_and_mix(running, recipe, tokenizer, evaluations)
        if not dry_run:
            span_cache.save()  # of the parts that were taken since
        entries = run_assemble(running, recipe, tokenizer, mixed, runs, mix_folder)
        if dry_run:
            raise DryRunEnd([])

        # Write the manifest, and delete what an earlier recipe left.
        unread = {selection.source.name: selection.unread() for selection in selections}
        check()
        manifest = publish(
            out_store,
            recipe=recipe,
            tokenizer=tokenizer,
            plan=mixed,
            runs=runs.runs,
            encoded=encoded,
            unread=list(unread.values()),
            shards=entries,
            carried=merge_carried(recipe, [selection.carried for selection in selections]),
        )
        digest = hashlib.sha256(out_store.read(MANIFEST_FILE)).hexdigest()
        kept = choose_kept(running, digest)
        records.note_set(digest, running.used)
        write_records(work_store, records)
        _prune(running, kept)

        # Validate the finished set, each shard in a task of its own stage.
        assembled = running.stages["assemble"].results
        note_set(work_store, digest)
        known_valid = not any(stage.ran for stage in running.stages.values()) and _is_known_valid(work_store, digest)
        level = "quick" if known_valid else level
        validating, used = time.perf_counter(), time.process_time()
        if level == "full":
            checksums = {key: value for item in assembled for key, value in item.get("checksums", {}).items()}
            validation, core_seconds = run_validation(running, checksums)
        else:
            validation = validate(str(out_store), level=level)
            core_seconds = time.process_time() - used
        now = time.perf_counter()
        why = ", since this set was found whole by the full level before" if known_valid else ""
        progress.note(f"validate: {level} level in {now - validating:.1f} s{why}")
        masked = _count_masked(recipe, runs, encoded)
        empty = {selection.source.name: selection.empty for selection in selections if selection.empty}
        report = BuildResult(
            manifest, validation, running.stages, unread, empty, masked, tuple(running.notes), now - started
        )
        valid = not validation.problems and (known_valid or level == "full")
        spent = {"seconds": now - validating, "core_seconds": core_seconds}
        _write_summary(work_store, executor.workers, report, validating=spent, valid=digest if valid else "")
    return report


def _count_masked(recipe: Recipe, runs: RunList, encoded: list[dict[str, Any]]) -> dict[str, MaskedCounts]:
    found: dict[str, MaskedCounts] = {}
    for index, source in enumerate(recipe.sources):
        own = (result for run, result in zip(runs.runs, encoded, strict=True) if run.source == index)
        if counts := count_masked(own):
            found[source.name] = counts
    return found


def _check_places(out: WritableStore, work: WritableStore, recipe: Recipe, *, probing: bool) -> None:
    """Check what a build needs of its two places, before it writes there. Probing a bucket writes to it.

    Raises:
        OutputError: a place holds other files, or one is in the other.
        StoreError: an object store cannot be used, or lacks what a build needs.
    """
    if _is_within(work, out):
        raise OutputError(f"{work}: the work folder is inside the set's folder. Choose another --work.")
    if work.folder is None and needs_fetch(recipe):
        raise OutputError(
            f"{work}: what is fetched from Software Heritage is kept in the work folder, which must be a folder of "
            "this machine then. Give one with --work; --out may be in the store."
        )
    for store in (work, out):
        if store.folder is None and probing:
            require_abilities(probe(store))
    check_output(out, recipe)
    _check_work(work)


def _is_within(work: WritableStore, out: WritableStore) -> bool:
    if work.folder is not None and out.folder is not None:
        return work.folder.resolve().is_relative_to(out.folder.resolve())
    return f"{work}/".startswith(f"{out}/")


def _check_work(work: WritableStore) -> None:
    """Refuse a folder with files that are not an earlier build's: pruning, or the user, would delete them."""
    if work.folder is not None:
        names = {path.name for path in work.folder.iterdir()} if work.folder.is_dir() else set[str]()
    else:  # the first page of the listing
        names = {file.name.partition("/")[0] for file in itertools.islice(work.list(), 1000)}
    if foreign := sorted(name for name in names if not _WORK_NAME.fullmatch(name)):
        listed = ", ".join(foreign[:5])
        raise OutputError(
            f"{work}: holds files that are not a build's work: {listed}. Choose an empty folder for --work."
        )


@contextmanager
def _held(work: WritableStore, out: WritableStore) -> Generator[Callable[[], None]]:
    """Keep other builds away from both places; yield what raises when a place has been lost to another one."""
    with ExitStack() as stack:
        leases: list[Lease] = []
        for store in (work, out):
            if store.folder is not None:
                store.folder.mkdir(parents=True, exist_ok=True)
                if not os.access(store.folder, os.W_OK):
                    raise OutputError(f"{store}: no permission to write. Choose another folder, or change its mode.")
                stack.enter_context(lock_folder(store.folder))
            else:
                leases.append(stack.enter_context(closing(Lease(store))))

        def check() -> None:
            for lease in leases:
                lease.check()

        try:
            yield check
        finally:
            _remove_empty(work, out)  # a build that failed early leaves no empty folders


def _remove_empty(work: WritableStore, out: WritableStore) -> None:
    inner = work.folder.iterdir() if work.folder is not None else ()
    for folder in (*inner, work.folder, out.folder):
        with suppress(OSError):  # not empty, or a file
            if folder is not None:
                folder.rmdir()


def _prune(running: RunningBuild, kept: Mapping[str, set[str]]) -> None:
    """Delete the work of earlier versions of the recipe that this build does not use, but for what is kept of the set
    before; and lost attempts."""
    for stage, own in running.used.items():
        used = own | kept.get(stage, set[str]())
        store = running.work.child(stage)
        if store.folder is None or running.driver.scratch is not None:
            _prune_attempts(running, stage, used)
        if store.folder is not None and store.folder.is_dir():
            for path in store.folder.iterdir():
                if path.name not in used:
                    delete_path(path)
    if running.work.folder is not None:
        for path in running.work.folder.glob("encoder-*.json"):  # of version 0.1.0
            path.unlink()


def _prune_attempts(running: RunningBuild, stage: str, used: set[str]) -> None:
    """Delete a stage's files, except files of tasks in use; of these tasks, delete only attempts that do not count."""
    store = running.work.child(stage)
    for file in list(store.list()):
        task, _, rest = file.name.partition("/")
        attempt, _, inner = rest.partition("/")
        result = running.driver.result_of(stage, task)
        lost = inner and result is not None and attempt != result.get("attempt")
        if task not in used or lost:
            store.delete(file.name)


def _is_known_valid(work: WritableStore, manifest_sha256: str) -> bool:
    """Return whether an earlier build has found this set valid in full."""
    try:
        return json.loads(work.read(SUMMARY_FILE))["validate"]["valid"] == manifest_sha256
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_summary(
    work: WritableStore, workers: int, report: BuildResult, *, validating: dict[str, float], valid: str
) -> None:
    summary = {
        "seconds": report.seconds,
        "workers": workers,
        "text_bytes": report.text_bytes,
        "stages": {name: stage.summary() for name, stage in report.stages.items()},
        "validate": {"level": report.validation.level, **validating, "valid": valid},
    }
    work.put(SUMMARY_FILE, (json.dumps(summary, indent=2) + "\n").encode())

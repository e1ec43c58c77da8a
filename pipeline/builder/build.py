"""Build: from a recipe to a validated shard set, stage by stage. A re-run does only what is missing.

    sources --units--> encode --runs sorted by content hash--> mix --cut keys--> assemble --> shard set
       \\__ sample __> tokenizer __/   ^------ more units -------'

The set's bytes depend on the recipe and the data alone: not on the number of workers, on interruptions, or on time.
The stages are in `pipeline.builder.stages`; only the work folder's build.json holds times.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.builder.places import check_places, hold_places
from pipeline.builder.publish import publish
from pipeline.builder.running_build import DryRunEnd, RunningBuild
from pipeline.builder.stages.assemble import run_assemble
from pipeline.builder.stages.evaluations import run_evaluations
from pipeline.builder.stages.fetch import run_fetch
from pipeline.builder.stages.mix import run_encode_and_mix
from pipeline.builder.stages.tokenizer import run_tokenizer
from pipeline.engine.driver import Driver, StageResult
from pipeline.engine.executors import Executor
from pipeline.engine.receipts import WorkFileDamagedError
from pipeline.engine.stage_progress import Progress
from pipeline.recipe.schema import Recipe
from pipeline.sources.hub import pin_revisions
from pipeline.sources.selection import Unread, open_sources
from pipeline.sources.span_cache import SpanCache
from shards.errors import plural
from shards.format.manifest import Manifest
from shards.stores.open import open_writable_store
from shards.validation.validate import Level, ValidationResult, validate

SUMMARY_FILE = "build.json"
"""Of the last build: its times, and the SHA-256 of the manifest of the set that it found valid in full."""


@dataclass(frozen=True)
class BuildResult:
    """The result of a build."""

    manifest: Manifest
    validation: ValidationResult
    stages: dict[str, StageResult[Any]]
    unread: dict[str, Unread]
    """The unread parts of each source, by name."""
    empty: dict[str, list[str]]
    """The files that hold no record, of each source that has any, by name."""
    masked: dict[str, dict[str, dict[str, int]]]
    """Masked hits in the documents of each source, by name, as `Tally.masked_counts`; only sources with any."""
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
        return sum(result.text_bytes for result in self.stages["encode"].results)


def build(
    recipe: Recipe,
    *,
    out: str | Path,
    work: str | Path,
    executor: Executor,
    progress: Progress,
    level: Level = "full",
    keep_tokenizer: bool = False,
    scratch: Path | None = None,
    dry_run: bool = False,
    prune: bool = False,
) -> BuildResult:
    """Build a shard set: what `pipeline.builder.python_api.build_set` does, with its arguments, in a given executor.

    If this very set has been found valid in full before, and no task ran, the level of validation is "quick".

    Raises:
        As `build_set`, but a set in which validation found problems is returned.
    """
    # Check the places; nothing is written yet.
    started = time.perf_counter()
    out_store, work_store = open_writable_store(out), open_writable_store(work)
    check_places(out_store, work_store, recipe, probing=not dry_run)
    recipe = pin_revisions(recipe, work_store, keep=not dry_run)

    def run(driver: Driver, check: Callable[[], None]) -> BuildResult:
        selections = open_sources(recipe, spans := SpanCache(work_store))
        running = RunningBuild(
            work_store,
            recipe,
            out_store,
            driver,
            selections,
            spans,
            keep_tokenizer=keep_tokenizer,
            dry_run=dry_run,
        )
        # Each stage adds what it makes to the build; in a dry run the first with missing tasks ends it.
        for run_stage in (run_evaluations, run_fetch, run_tokenizer, run_encode_and_mix, run_assemble):
            run_stage(running)
        if dry_run:
            raise DryRunEnd([])

        # Write the manifest, and delete what an earlier recipe left.
        check()
        manifest = publish(running)
        running.store()
        if prune:
            running.prune()

        # Validate the finished set.
        return _finish(running, manifest, level, started)

    # From here on no other build works in the two places. A dry run takes no lock.
    with nullcontext(lambda: None) if dry_run else hold_places(out_store, work_store) as check:
        driver = Driver(
            work_store, executor, progress, scratch=str(scratch.absolute()) if scratch else None, check=check
        )
        while True:
            try:
                return run(driver, check)
            except WorkFileDamagedError as damage:
                if dry_run:
                    raise
                # Its task runs again, and so does what needs it: the build begins again from its receipts.
                driver.forget(damage)


def _finish(build: RunningBuild, manifest: Manifest, level: Level, started: float) -> BuildResult:
    """Validate a published set, which is read back from where it was published; write the summary."""
    # A set that was found whole and has not been touched since is checked by its files' sizes alone.
    validating, core_seconds = time.perf_counter(), time.process_time()
    known_valid = not any(stage.ran for stage in build.stages.values()) and _is_known_valid(build)
    assembled = build.stages["assemble"].results if "assemble" in build.stages else []
    validation = validate(
        str(build.out),
        level="quick" if known_valid else level,
        threads=min(build.driver.executor.workers, len(os.sched_getaffinity(0))),
        checksums={key: value for result in assembled for key, value in result.checksums.items()},
    )
    now = time.perf_counter()
    why = ", since this set was found whole by the full level before" if known_valid else ""
    build.say(f"validate: {validation.level} level in {now - validating:.1f} s{why}")
    # What a person wants to know, and what the next build reads.
    tallies = zip(build.recipe.sources, build.tallies, strict=True)
    masked = {source.name: tally.masked_counts for source, tally in tallies}
    result = BuildResult(
        manifest,
        validation,
        build.stages,
        unread={selection.source.name: selection.unread() for selection in build.selections},
        empty={selection.source.name: selection.empty for selection in build.selections if selection.empty},
        masked={name: counts for name, counts in masked.items() if counts},
        notes=tuple(build.notes),
        seconds=now - started,
    )
    is_valid = not validation.problems and (known_valid or validation.level == "full")
    summary = {
        "seconds": result.seconds,
        "workers": build.driver.executor.workers,
        "text_bytes": result.text_bytes,
        "stages": {name: stage.summary() for name, stage in result.stages.items()},
        "validate": {
            "level": validation.level,
            "seconds": now - validating,
            "core_seconds": time.process_time() - core_seconds,
            "valid": build.manifest if is_valid else "",
        },
    }
    build.work.put(SUMMARY_FILE, (json.dumps(summary, indent=2) + "\n").encode())
    return result


def _is_known_valid(build: RunningBuild) -> bool:
    """Return whether an earlier build has found this set valid in full."""
    try:
        return json.loads(build.work.read(SUMMARY_FILE))["validate"]["valid"] == build.manifest
    except (OSError, ValueError, KeyError, TypeError):
        return False

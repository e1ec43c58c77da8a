"""Build: from a recipe to a validated shard set, stage by stage. A re-run does only what is missing.

    sources --units--> encode --runs sorted by content hash--> mix --cut keys--> assemble --> shard set
       \\__ sample __> tokenizer __/   ^------ more units -------'

The set's bytes depend on the recipe and the data alone: not on the number of workers, on interruptions, or on time.
The stages are in `pipeline.builder.stages`; only the work folder's build.json holds times.

`build_set` is what `tokenmill build` does, for Python programs. Errors are exceptions, results are objects, and nothing
is printed unless `progress=True`. The environment, the signal handlers and the main module of the program stay as they
are: a script needs no `if __name__ == "__main__"`, and a notebook works. One build or plan at a time in a process.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, TypeAlias, cast

from pipeline.builder.checked_recipe import load_checked_recipe, pin_models
from pipeline.builder.places import check_places, default_work, hold_places
from pipeline.builder.publish import publish
from pipeline.builder.running_build import DryRunEnd as DryRunEnd
from pipeline.builder.running_build import RunningBuild
from pipeline.builder.stages.assemble import run_assemble
from pipeline.builder.stages.evaluations import run_evaluations
from pipeline.builder.stages.fetch import run_fetch
from pipeline.builder.stages.mix import run_encode_and_mix
from pipeline.builder.stages.tokenizer import run_tokenizer
from pipeline.clean.functions.process import closing_functions
from pipeline.engine.attempts import default_scratch
from pipeline.engine.driver import Driver, StageResult
from pipeline.engine.executors import Executor, LocalExecutor, count_cores
from pipeline.engine.receipts import WorkFileDamagedError
from pipeline.engine.stage_progress import SHOWN_S, Progress
from pipeline.recipe.paths import RecipePath
from pipeline.recipe.schema import Recipe
from pipeline.sources.hub import pin_revisions
from pipeline.sources.network import Network, with_cache
from pipeline.sources.rows import write_rows
from pipeline.sources.selection import Unread
from shards.config import TypedText
from shards.errors import InputError, RunError, plural
from shards.format.manifest import Manifest
from shards.stores.open import absolute_place, open_writable_store
from shards.stores.store import WritableStore
from shards.validation.validate import Level, ValidationResult
from shards.validation.validate import validate as validate_set

SUMMARY_FILE = "build.json"
"""Of the last build: its times, and the SHA-256 of the manifest of the set that it found valid in full."""

AnyRecipe: TypeAlias = "str | Path | dict[str, Any] | Recipe"
"""A recipe's file, the name of a shipped recipe, a recipe's tables, or a recipe."""
RowsByName: TypeAlias = Mapping[str, Iterable[Mapping[str, Any]] | str | Path | list[str]]
"""By the name of a source its rows, dicts by column; or the files that it is read from: globs, folders, files."""


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
    masked: dict[str, dict[str, int]]
    """Masked hits in the documents of each source, by name, and by kind; only sources with any."""
    notes: tuple[str, ...]
    seconds: float

    def __repr__(self) -> str:
        found = plural(len(self.validation.problems), "problem")
        return f"<BuildResult of {self.manifest.summary}; {plural(self.tasks_run, 'task')} run, {found}>"

    @property
    def tasks_run(self) -> int:
        """Tasks that the build ran: those that were not already done."""
        return sum(stage.ran for stage in self.stages.values())

    @property
    def text_bytes(self) -> int:
        """Bytes of text that the build has encoded, now or before."""
        return sum(result.text_bytes for result in self.stages["encode"].results.values())


class SetProblemsError(RunError):
    """A set that was built, but in which validation found problems. `result` is what `build_set` would return
    otherwise."""

    def __init__(self, result: BuildResult):
        super().__init__(result.validation.problems)
        self.result = result


def build_set(
    recipe: AnyRecipe,
    *,
    out: str | Path,
    work: str | Path | None = None,
    overrides: Sequence[str] = (),
    tokens: int | str | None = None,
    workers: int | None = None,
    validate: Level = "full",
    network: Network | None = None,
    progress: bool = False,
    executor: Executor | None = None,
    scratch: str | Path | None = None,
    dry_run: bool = False,
    prune: bool = False,
    sources: RowsByName | None = None,
    allow_code: bool = False,
) -> BuildResult:
    """Build a shard set from a recipe, for Python programs; a call with the same arguments does only what is missing.

        result = pipeline.build_set("demo", out="out/demo")
        result.manifest.splits["train"].tokens

    Args:
        recipe: the recipe's file, the name of a shipped recipe, its tables as a dict, or a `Recipe`.
        out: folder of the set, or its address in an object store: `s3://BUCKET/PREFIX` (or `gs`, `az`).
        work: folder or address for runs and receipts; `OUT.work` when None. Keep it to make the next build cheap.
        overrides: `KEY=VALUE` strings that change the recipe, as `--set` does: `["seed=2"]`.
        tokens: training tokens of a smaller set, as `--tokens` gives them: what is too large for it is scaled.
        workers: worker processes; the cores that this process may use when None.
        validate: how the finished set is checked; "quick" if no task ran and this very set was found valid in full.
        network: how sources are read over a network; the defaults when None.
        progress: print progress on stderr.
        executor: where the tasks run, in place of `workers` processes of this machine. The caller closes it.
        scratch: folder on the machine that runs a task, where it writes before its files get their place. When None,
            they are written there if it is a folder, and else in the system's folder for temporary files.
        dry_run: run nothing, and write nothing: raise `DryRunEnd`.
        prune: when the set is published, delete from the work folder what this build did not use.
        sources: by the name of a source of the recipe, its rows: dicts with the text in the source's column `text`.
            They are written once to a file in the work folder, which is then the source's path. Or the files that hold
            them, as `--source` gives them: a glob, a folder or a file, or a list of them.
        allow_code: let the functions that the recipe names run, each in a process of its own.

    Returns:
        The set's manifest, the result of its validation, and what each stage did.

    Raises:
        InputError: the recipe, the data, a folder or the machine cannot be used. Nothing was published.
        RunError: the build failed on the way; call again to go on. `SetProblemsError` if it was built, and validation
            found problems.
        OSError: the disk is full or cannot be written. Call again to go on.
        DryRunEnd: with `dry_run`: which tasks the build would run, and why.
    """
    started = time.perf_counter()
    out = absolute_place(out)
    out_store, work_store = (open_writable_store(place) for place in (out, work or default_work(out)))
    with contextlib.ExitStack() as stack:
        stack.enter_context(closing_functions())
        cache = (work_store.folder or (Path(scratch) if scratch else default_scratch())) / "cache"
        stack.enter_context(with_cache(network, cache=cache))
        loaded = load_recipe(
            recipe,
            overrides=overrides,
            tokens=tokens,
            sources=sources,
            progress=progress,
            allow_code=allow_code,
            work=None if dry_run else work_store.folder,
        )
        if executor is None:
            measures = bool(loaded.clean) or any(source.clean.presets() for source in loaded.sources)
            local = LocalExecutor(workers or count_cores(), measures=measures)
            executor = stack.enter_context(contextlib.closing(local))
        check_places(out_store, work_store, loaded, probing=not dry_run)
        loaded = pin_revisions(loaded, work_store, keep=not dry_run)
        # From here on no other build works in the two places. A dry run takes no lock.
        check = None if dry_run else stack.enter_context(hold_places(out_store, work_store))
        place = str(Path(scratch).absolute()) if scratch else None
        driver = Driver(work_store, executor, Progress(quiet=not progress), scratch=place, check=check)
        while True:
            try:
                build = _run_stages(loaded, out_store, driver, dry_run=dry_run)
                result = _finish(build, validate, prune=prune, started=started)
                break
            except WorkFileDamagedError as damage:
                if dry_run:
                    raise
                # Its task runs again, and so does what needs it: the build begins again from its receipts.
                driver.forget(damage)
    if result.validation.problems:
        raise SetProblemsError(result)
    return result


def _run_stages(recipe: Recipe, out: WritableStore, driver: Driver, *, dry_run: bool) -> RunningBuild:
    """Run the stages of a build; each adds what it makes. In a dry run the first with missing tasks ends it."""
    build = RunningBuild(driver.work, recipe, out, driver, dry_run=dry_run)
    for run_stage in (run_evaluations, run_fetch, run_tokenizer, run_encode_and_mix, run_assemble):
        run_stage(build)
    if dry_run:
        raise DryRunEnd([])
    return build


def _finish(build: RunningBuild, level: Level, *, prune: bool, started: float) -> BuildResult:
    """End a build: publish its set, validate it, read back from where it was published; write the build's summary."""
    build.driver.check()
    manifest = publish(build)
    build.store()
    if prune:
        build.prune()
    # A set that was found whole and has not been touched since is checked by its files' sizes alone.
    validating, core_seconds = time.perf_counter(), time.process_time()
    known_valid = not any(stage.ran for stage in build.stages.values()) and _is_known_valid(build)
    # More threads than cores, so that the last shards share the cores that the others have left.
    validation = validate_set(
        str(build.out),
        level="quick" if known_valid else level,
        threads=2 * min(build.driver.executor.workers, count_cores()),
        checksums={
            key: value
            for result in build.stages["assemble"].results.values()
            for key, value in result.checksums.items()
        },
    )
    now = time.perf_counter()
    if (seconds := now - validating) >= SHOWN_S:
        build.say(f"validate: {validation.level} check in {seconds:.1f} s")
    # What a person wants to know, and what the next build reads.
    result = BuildResult(
        manifest,
        validation,
        build.stages,
        unread={selection.source.name: selection.unread() for selection in build.selections},
        empty={selection.source.name: selection.empty for selection in build.selections if selection.empty},
        masked={
            source.name: dict(sorted(tally.masked.items()))
            for source, tally in zip(build.recipe.sources, build.tallies, strict=True)
            if tally.masked
        },
        notes=tuple(build.notes),
        seconds=now - started,
    )
    is_valid = not validation.problems and (known_valid or validation.level == "full")
    summary = {
        "seconds": result.seconds,
        "workers": build.driver.executor.workers,
        "stages": {name: stage.summary() for name, stage in result.stages.items()},
        "validate": {
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
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def load_recipe(
    recipe: AnyRecipe,
    *,
    overrides: Sequence[str] = (),
    tokens: int | str | None = None,
    sources: RowsByName | None = None,
    progress: bool = False,
    allow_code: bool = False,
    work: Path | None = None,
) -> Recipe:
    """Load a data recipe for `build_set` and `plan_set`: checked together with the files that it names.

    Args:
        recipe: the recipe's file, the name of a shipped recipe, its tables as a dict, or a `Recipe`.
        overrides: `KEY=VALUE` strings that change the file's keys, as `--set` does.
        tokens: as for `build_set`.
        sources: the files of sources, or their rows, as for `build_set`.
        progress: print on stderr what takes time, such as gathering the text of the shipped `demo`.
        allow_code: let the functions that the recipe names run, each in a process of its own.
        work: a work folder. Rows are written to its folder `rows`.

    Raises:
        InputError: with every fault of the recipe and of the overrides; or these are no rows, or cannot be written.
    """
    if isinstance(recipe, Recipe):
        if sources or overrides or tokens:
            raise InputError("overrides, tokens and sources change tables. Change the Recipe: recipe.model_copy(...).")
        return pin_models(recipe, allow_code=allow_code)
    are_named = hasattr(sources or {}, "items")
    files = {name: _type_files(value) for name, value in sources.items()} if sources and are_named else {}
    rows = [name for name, paths in files.items() if not paths]
    if not are_named or (rows and work is None):
        raise InputError(
            "sources: expected a dict of rows by the name of their source, a recipe's file, name or tables, a work "
            "folder on disk, and no dry_run: the rows are written there."
        )
    # With any file at first: a fault of the recipe is found before the first row is asked for.
    files |= {name: [RecipePath(__file__)] for name in rows}
    shown = Progress(quiet=not progress)
    while True:
        loaded = load_checked_recipe(
            recipe, overrides=overrides, tokens=tokens, files=files, progress=shown, allow_code=allow_code
        )
        if work is None or not rows:
            return loaded
        for name in rows:
            file = write_rows(cast("Any", sources)[name], work / "rows" / name, name)
            # A set's recipe.json is the same wherever its work folder is.
            files[name] = [RecipePath(escape(str(file)), f"rows/{name}/{file.name}")]
        rows = []


def _type_files(value: Any) -> Sequence[str]:
    """Return the globs of a source's files, folders among them, as those of an override; none if the value is rows."""
    paths: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    if not all(isinstance(path, str | Path) for path in paths):
        return []
    return [TypedText(os.path.join(path, "**/*") if os.path.isdir(path) else path) for path in paths]

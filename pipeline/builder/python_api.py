"""`build_set`: what `tokenmill build` does, for Python programs.

Errors are exceptions, results are objects, and nothing is printed unless `progress=True`. The environment, the signal
handlers and the main module of the program stay as they are: a script needs no `if __name__ == "__main__"`, and a
notebook works. One build or plan at a time in a process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pipeline.builder.build import BuildResult, build
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.builder.running_build import DryRunEnd as DryRunEnd
from pipeline.engine.attempts import default_scratch
from pipeline.engine.executors import Executor, LocalExecutor
from pipeline.engine.stage_progress import Progress
from pipeline.recipe.schema import Recipe
from pipeline.sources.network.settings import Network
from pipeline.sources.network.settings import network_settings as current_network
from shards.errors import InputError, RunError
from shards.stores.open import absolute_place, open_writable_store
from shards.validation.validate import Level

AnyRecipe: TypeAlias = "str | Path | dict[str, Any] | Recipe"
"""A recipe's file, the name of a shipped recipe, a recipe's tables, or a recipe."""


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
    workers: int | None = None,
    validate: Level = "full",
    tokenizer: Literal["recipe", "keep"] = "recipe",
    network: Network | None = None,
    progress: bool = False,
    executor: Executor | None = None,
    scratch: str | Path | None = None,
    dry_run: bool = False,
    prune: bool = False,
) -> BuildResult:
    """Build a shard set from a recipe, for Python programs; a call with the same arguments does only what is missing.

        result = pipeline.build_set("demo", out="out/demo")
        result.manifest.splits["train"].tokens

    Args:
        recipe: the recipe's file, the name of a shipped recipe, its tables as a dict, or a `Recipe`.
        out: folder of the set, or its address in an object store: `s3://BUCKET/PREFIX` (or `gs`, `az`).
        work: folder or address for runs and receipts; `OUT.work` when None. Keep it to make the next build cheap.
        overrides: `KEY=VALUE` strings that change the recipe, as `--set` does: `["mix.tokens=1M"]`.
        workers: worker processes; the cores that this process may use when None.
        validate: how the finished set is checked.
        tokenizer: "recipe": train the tokenizer, or use the recipe's file; "keep": use the one in the work folder,
            although the sources have other files now, and encode only what is new.
        network: how sources are read over a network; the defaults when None.
        progress: print progress on stderr.
        executor: where the tasks run, in place of `workers` processes of this machine. The caller closes it.
        scratch: folder on the machine that runs a task, where it writes before its files get their place. When None,
            they are written there if it is a folder, and else in the system's folder for temporary files.
        dry_run: run nothing, and write nothing: raise `DryRunEnd`.
        prune: when the set is published, delete from the work folder what this build did not use.

    Returns:
        The set's manifest, the result of its validation, and what each stage did.

    Raises:
        InputError: the recipe, the data, a folder or the machine cannot be used. Nothing was published.
        RunError: the build failed on the way; call again to go on. `SetProblemsError` if it was built, and validation
            found problems.
        OSError: the disk is full or cannot be written. Call again to go on.
        DryRunEnd: with `dry_run`: which tasks the build would run, and why.
    """
    out = absolute_place(out)
    work = absolute_place(work) if work else default_work(out)
    with contextlib.ExitStack() as stack:
        stack.enter_context(with_cache(network, cache=_cache_folder(work, scratch)))
        loaded = load_recipe(recipe, overrides=overrides, progress=progress)
        if executor is None:
            measures = any(source.clean.presets() for source in loaded.sources)
            local = LocalExecutor(workers or count_cores(), measures=measures)
            executor = stack.enter_context(contextlib.closing(local))
        result = build(
            loaded,
            out=out,
            work=work,
            executor=executor,
            progress=Progress(quiet=not progress),
            level=validate,
            keep_tokenizer=tokenizer == "keep",
            scratch=Path(scratch) if scratch else None,
            dry_run=dry_run,
            prune=prune,
        )
    if result.validation.problems:
        raise SetProblemsError(result)
    return result


def load_recipe(recipe: AnyRecipe, *, overrides: Sequence[str] = (), progress: bool = False) -> Recipe:
    """Load a data recipe for `build_set` and `plan_set`: checked together with the files that it names.

    Args:
        recipe: the recipe's file, the name of a shipped recipe, its tables as a dict, or a `Recipe`.
        overrides: `KEY=VALUE` strings that change the file's keys, as `--set` does.
        progress: print on stderr what takes time, such as gathering the text of the shipped `demo`.

    Raises:
        InputError: with every fault of the recipe and of the overrides.
    """
    if not isinstance(recipe, Recipe):
        return load_checked_recipe(recipe, overrides=overrides, progress=Progress(quiet=not progress))
    if overrides:
        raise InputError("overrides change a recipe's file. Change the Recipe itself: recipe.model_copy(update=...).")
    return recipe


def default_work(out: str) -> str:
    """Return the work folder that `build_set` uses if it is given none."""
    return f"{out}.work"


def _cache_folder(work: str, scratch: str | Path | None) -> Path:
    folder = open_writable_store(work).folder
    return (folder or (Path(scratch) if scratch else default_scratch())) / "cache"


def count_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def with_cache(chosen: Network | None, *, cache: Path) -> contextlib.AbstractContextManager[None]:
    """Put settings for reading over a network into effect, with a folder for the cache if they name none."""
    settings = chosen or current_network()
    return (settings if settings.cache else replace(settings, cache=str(cache.absolute()))).in_effect()

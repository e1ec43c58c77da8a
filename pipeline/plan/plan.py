"""`plan_set`: what `tokenmill plan` does, for Python programs."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.builder.python_api import AnyRecipe, count_cores, load_recipe, with_cache
from pipeline.plan.estimate import Estimate, Machines, estimate
from pipeline.plan.small_build import build_sample
from pipeline.sources.hub import pin_revisions
from pipeline.sources.network.settings import Network
from pipeline.sources.selection import open_sources


def plan_set(
    recipe: AnyRecipe,
    *,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    gpu_usd_per_hour: float | None = None,
    node_usd_per_hour: float | None = None,
    cpus_per_node: int = 1,
    network: Network | None = None,
    progress: bool = False,
) -> Estimate:
    """Estimate what a build reads, writes, takes and costs, from footers and a small build. Keeps nothing.

    A few megabytes of each source go through the stages of a build in a temporary folder; its results are scaled up.

    Args:
        recipe: the recipe's file, the name of a shipped recipe, its tables as a dict, or a `Recipe`.
        overrides: `KEY=VALUE` strings that change the recipe, as `--set` does.
        workers: tasks that run at once, on one machine or many; the cores that this process may use when None.
        gpu_usd_per_hour: the price of a GPU that waits for the build.
        node_usd_per_hour: the price of each machine that runs workers.
        cpus_per_node: workers that one of them runs at once.
        network: how sources are read over a network; the defaults when None.
        progress: print progress on stderr.

    Returns:
        Tokens, documents and bytes of each source, seconds of each stage, and bytes of disk. Its `refusal` says why the
        build would refuse the recipe.

    Raises:
        InputError: the recipe or the data cannot be used.
    """
    # Footers are read more than once.
    with tempfile.TemporaryDirectory(prefix="tokenmill-plan-") as cache, with_cache(network, cache=Path(cache)):
        loaded = pin_revisions(load_recipe(recipe, overrides=overrides, progress=progress))
        selections = open_sources(loaded)
        built = build_sample(loaded, selections, quiet=not progress)
        machines = Machines(workers or count_cores(), node_usd_per_hour, cpus_per_node, gpu_usd_per_hour)
        return estimate(loaded, selections, built, machines)

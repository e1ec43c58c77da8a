"""One recipe built on disk, into an object store on loopback, and on a Ray cluster of two nodes, by turns.

The object store is moto: of the servers at hand that create conditionally, which a build needs, the one that takes the
least processor time. It works on the same cores as the build. So its processor seconds are given apart: a store
elsewhere takes none of them from the build. Ray's cluster is up before the clock starts, and connecting to it, with
what its workers load, is timed with a recipe of one small file.
"""

import contextlib
from functools import partial
from pathlib import Path

import psutil

from tests.benchmarks.build import prose_recipe
from tests.benchmarks.harness import Figures, Usage, alternate, median, remove, run_python
from tests.benchmarks.material import recipe_text, write_copies

ROUNDS = 3
SMALL_TEXT = 400_000


def bench_engines(work: Path, quick: bool) -> Figures:
    """Build 602 MB of text, or with `quick` 150 MB, in each place by turns.

    Each place has its medians by the clock and of the build's own processes. Ratios are to `local` by the clock,
    `ray_ratio` without `ray_start_s`; `s3_core_ratio` leaves out the server.
    """
    from tests.support.ray_cluster import RayCluster
    from tests.support.servers.objects import aws_settings, moto_store

    files = None if quick else write_copies(work)
    (work / "engines.toml").write_text(prose_recipe(work, files=files))
    small = work / "small.jsonl"
    small.write_text("".join(f'{{"text": "{number} {"a word " * 9}"}}\n' for number in range(SMALL_TEXT // 70)))
    (work / "small.toml").write_text(recipe_text([small], work / "tokenizer.json", val_tokens=1000))
    folders, server_s = (str(work / "engine-set"), str(work / "engine-work")), list[float]()

    def build(recipe: str, places: tuple[str, str], *engine: str, **environment: str) -> Usage:
        remove(work, "engine-set", "engine-work")
        command = ["-m", "tokenmill", "build", str(work / recipe), "--out", places[0], "--work", places[1], *engine]
        return run_python(command, **environment)[0]

    with moto_store() as server, RayCluster() as cluster:

        def build_in_bucket() -> Usage:
            server.reset()
            bucket, before = server.empty_bucket(), _core_seconds(server.pid)
            places = (f"{bucket}/set", f"{bucket}/work")
            usage = build("engines.toml", places, "--workers", "2", **aws_settings(server.url))
            server_s.append(_core_seconds(server.pid) - before)
            return usage

        local = ("--workers", "2")
        ray = partial(build, **cluster.environment)
        engine = ("--engine", "ray", "--ray-address", cluster.address)
        sides = {
            "local": partial(build, "engines.toml", folders, *local),
            "s3": build_in_bucket,
            "ray": partial(ray, "engines.toml", folders, *engine),
            "local_start": partial(build, "small.toml", folders, *local),
            "ray_start": partial(ray, "small.toml", folders, *engine),
        }
        found = alternate(ROUNDS, sides)
    remove(work, "copies", "engine-set", "engine-work")
    figures: Figures = {f"{name}_s": median([usage.seconds for usage in usages]) for name, usages in found.items()}
    for name in ("local", "s3"):
        figures[f"{name}_core_s"] = median([usage.core_seconds for usage in found[name]])
    start = max(0.0, figures["ray_start_s"] - figures["local_start_s"])
    return figures | {
        "s3_server_core_s": median(server_s),
        "s3_ratio": figures["s3_s"] / figures["local_s"],
        "s3_core_ratio": figures["s3_core_s"] / figures["local_core_s"],
        "ray_ratio": (figures["ray_s"] - start) / figures["local_s"],
    }


def _core_seconds(pid: int) -> float:
    """Return what a process and those below it have used, with those of them that have ended and were waited for."""
    root, total = psutil.Process(pid), 0.0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total

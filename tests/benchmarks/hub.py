"""A Hub on loopback: a build streamed from it beside the same files on disk, and what `shards push` costs it and us.

The Hub is a process of its own on the same cores. A build begins with the tokenizer's sample, which encode reads again
from the cache. A push is of a set of many small shards; its seconds, and those of its Hub, are of the processor.
"""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path

from tests.benchmarks.harness import MB, Figures, alternate, build, median, remove, run_module, serve, watch_build
from tests.benchmarks.material import SPECIAL_TOKENS, VOCAB_SIZE, corpus_files, text_bytes, write_copies
from tests.support.servers.hub_writes import OWNER, WRITER
from tests.support.token_sets import count_up, write_token_set

REPO = "bench/bulk"
RECIPE = f"""
name = "bench"
[[sources]]
name = "bulk"
weight = 1
SOURCE
[tokenizer]
vocab_size = {VOCAB_SIZE}
special_tokens = {SPECIAL_TOKENS}
sample_bytes = "100 MB"
[shards]
tokens = 4_400_000
"""
ROUNDS = 3
SHARDS, SHARD_TOKENS = (2500, 10_000), 150


def bench_hub(work: Path, quick: bool) -> Figures:
    """Build `bulk_prose` (`small_`) and four copies of it, from disk and from the Hub in turns, and watch memory."""
    small = corpus_files("bulk_prose")
    figures = {f"small_{name}": value for name, value in _stream(work, small, rounds=1 if quick else ROUNDS).items()}
    if not quick:
        figures |= _stream(work, write_copies(small, work / "copies"), rounds=ROUNDS)
        figures["worker_ratio"] = figures["worker_mb"] / figures["small_worker_mb"]
        remove(work, "copies")
    return figures


def _stream(work: Path, files: list[Path], *, rounds: int) -> Figures:
    folder = work / "hub" / REPO / "data"
    folder.mkdir(parents=True)
    for index, file in enumerate(files):
        (folder / f"train-{index:05d}-of-{len(files):05d}.parquet").symlink_to(file)
    sources = {"disk": f"paths = ['{folder}/*.parquet']", "hub": f"kind = 'hub'\nrepo = '{REPO}'"}
    recipes = {name: RECIPE.replace("SOURCE", source) for name, source in sources.items()}
    with serve("tests.support.servers.hub", "--root", work / "hub") as url:
        own = {"HF_ENDPOINT": url, "HF_HOME": str(work / "hf")}

        def run(recipe: str) -> float:
            remove(work, "hf")
            return build(work, recipe, "--validate", "full", name="streamed", keep=False, **own).seconds

        found = alternate(rounds, {name: partial(run, recipe) for name, recipe in recipes.items()})
        peak = watch_build(work, recipes["hub"], **own)[1]
    remove(work, "hub")
    seconds = {name: median(values) for name, values in found.items()}
    figures: Figures = {"text_mb": text_bytes(files) / MB, "worker_mb": peak / MB}
    return (
        figures | {f"{name}_s": value for name, value in seconds.items()} | {"ratio": seconds["hub"] / seconds["disk"]}
    )


_SERVE = """
import sys, time
from pathlib import Path
from tests.support.servers.hub import Hub
with Hub(store=Path(sys.argv[1])) as hub:
    print(hub.url, flush=True)
    for _ in sys.stdin:
        print(time.process_time(), flush=True)
"""


def bench_push(work: Path, quick: bool) -> Figures:
    """Push sets of so many shards, each to an empty Hub, and push each again with nothing to send.

    `growth` is what a shard costs in the largest set, divided by its cost in the smallest; `hub_growth` the Hub's.
    """
    shards = [number // 10 for number in SHARDS] if quick else list(SHARDS)
    figures: Figures = {}
    for number in shards:
        folder = work / f"push-{number}"
        arrays = [count_up(SHARD_TOKENS, first=index * SHARD_TOKENS) for index in range(number)]
        write_token_set(folder / "set", {"train": arrays})
        command = [sys.executable, "-c", _SERVE, str(folder / "store")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hub:
            assert hub.stdin is not None
            assert hub.stdout is not None
            environment = {"HF_ENDPOINT": hub.stdout.readline().strip(), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": WRITER}
            used: list[float] = []
            for name in ("started", "push", "again"):
                if name != "started":
                    seconds = run_module("tests.benchmarks.hub", folder / "set", **environment)
                    figures[f"{name}_{number}_s"] = seconds
                hub.stdin.write("\n")
                hub.stdin.flush()
                used.append(float(hub.stdout.readline()))
            figures[f"hub_{number}_s"] = used[1] - used[0]
            hub.stdin.close()
        remove(work, folder.name)
    few, many = min(shards), max(shards)
    for name, of in (("growth", "push"), ("hub_growth", "hub")):
        figures[name] = figures[f"{of}_{many}_s"] / figures[f"{of}_{few}_s"] * few / many
    return figures


def _push_here(folder: Path) -> float:
    """Return the seconds of a push in this process, without what it loads."""
    from shards.hub.push import compare_with_hub, list_files, push
    from shards.stores.address import parse_hub_address
    from shards.stores.hub_client import quiet_hub_client

    quiet_hub_client()
    import_module("huggingface_hub.hf_api")
    started = time.process_time()
    push(compare_with_hub(list_files(folder), parse_hub_address(f"{OWNER}/set")))
    return time.process_time() - started


if __name__ == "__main__":
    print(_push_here(Path(sys.argv[1])))

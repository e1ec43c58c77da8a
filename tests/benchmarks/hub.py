"""A Hub on loopback: a build streamed from it beside the same files on disk.

The Hub is a process of its own on the same cores. A build begins with the tokenizer's sample, which encode reads again
from the cache.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from tests.benchmarks.harness import MB, Figures, alternate, build, median, remove, serve, watch_build
from tests.benchmarks.material import SPECIAL_TOKENS, VOCAB_SIZE, corpus_files, text_bytes, write_copies

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

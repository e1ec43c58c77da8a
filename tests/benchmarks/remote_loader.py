"""How long training steps wait for small shards from a Hub on loopback, beside the same shards on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shards.convert.import_.import_set import ImportOptions, import_set
from shards.format.manifest import Split
from tests.benchmarks.harness import Figures, run_python, serve
from trainer.commands.bench_steps import write_made_up_set
from trainer.metrics import read_metrics
from trainer.recipe import load_train_recipe

SHARD_TOKENS, STEPS = 100_000, 500
LATENCY_MS = 20
"""Of every answer of the Hub. A shard of 100,000 tokens makes latency count a thousand times as much as a usual one."""


def bench_remote_loader(work: Path, quick: bool) -> Figures:
    """Train the demo's model on small shards of made-up tokens, from disk and from a Hub on loopback, the cache empty.

    The Hub is a process of its own, on the same cores. The first step waits for the first shard, and is left out.
    `..._loader_share` is the share of all steps' time that waits for the loader.
    """
    recipe = load_train_recipe(Path("demo"), ["model.vocab_size=8192"])
    large = recipe.train.model_copy(update={"global_batch": 256})  # so that the made-up set holds a million tokens
    folder = work / "remote"
    folder.mkdir()
    write_made_up_set(recipe.model_copy(update={"train": large}), folder)
    bins: dict[Split, Sequence[Path]] = {"train": [folder / "train.bin"], "val": [folder / "val.bin"]}
    repo = folder / "root" / "bench" / "set"
    options = ImportOptions(name="made-up", shard_tokens=SHARD_TOKENS)
    import_set(bins, tokenizer=folder / "tokenizer.json", out=repo, options=options)
    settings = ["phases=[]", "train.log_every=1", "eval.every_steps=1000000"]
    settings.append(f"train.steps={STEPS // 2 if quick else STEPS}")
    figures: Figures = {}
    with serve("tests.support.servers.hub", "--root", folder / "root", "--latency-ms", LATENCY_MS) as url:
        for name, place in (("disk", str(repo)), ("hub", "hf://datasets/bench/set")):
            run = folder / name
            command = ["-m", "trainer", "train", "demo", "--shards", place, "--run", str(run), "--go-on"]
            command += ["--cache", str(folder / "cache"), *(f"--set={setting}" for setting in settings)]
            run_python(command, HF_ENDPOINT=url, HF_HUB_DISABLE_XET="1")
            records = [record for record in read_metrics(run) if "loss" in record and record["step"] > 1]
            waits = [record["data_wait_ms"] / 1000 for record in records]
            tokens = recipe.train.global_batch * recipe.train.seq_len
            seconds = sum(tokens / record["tokens_per_s"] for record in records)
            figures |= {
                f"{name}_loader_share": sum(waits) / seconds,
                f"{name}_longest_wait_ms": 1000 * max(waits),
                f"{name}_tokens_per_s": tokens * len(records) / seconds,
            }
    return figures

"""Builds of `bulk_prose`: beside datatrove, with cleaning and without, by stage, and the peaks of memory.

datatrove's DocumentTokenizer and merger get the same files, tokenizer and processes; both are commands of their own,
process start included.
"""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.harness import (
    MB,
    Figures,
    TopicSkippedError,
    Usage,
    alternate,
    build,
    median,
    remove,
    run_python,
    watch_build,
)
from tests.benchmarks.material import prose_files, prose_tokenizer, recipe_text, text_bytes, write_copies
from tests.support.builds import read_json
from tests.support.conversations import CORPUS, read_lines, to_records

SHARD_TOKENS = 4_400_000  # 8 training shards: a whole number for each process
ROUNDS, CLEANED_ROUNDS = 3, 6
CLEAN = """
[clean.gopher]
max_dropped = 1.0
[clean.c4]
max_dropped = 1.0
[clean.fineweb]
max_dropped = 1.0
[clean.code]
max_dropped = 1.0
max_mean_line_bytes = "off"
max_longest_line_bytes = "off"
[clean.near_duplicates]
action = "drop"
"""
"""Every measure is taken. The limits that are off are those of `code` that books break."""


def prose_recipe(work: Path, *, files: list[Path] | None = None) -> str:
    """Return the recipe of `bulk_prose`, or of other files, with the tokenizer of `bulk_prose`."""
    return recipe_text(files or prose_files(), prose_tokenizer(work)) + f"[shards]\ntokens = {SHARD_TOKENS}\n"


def write_set(work: Path) -> Path:
    """Return the shard set of `bulk_prose` that `bench_build` left in `work/set`; build it if it does not exist."""
    if not (work / "set" / "manifest.json").exists():
        build(work, prose_recipe(work), "--validate", "quick")
    return work / "set"


def bench_build(work: Path, quick: bool) -> Figures:
    """Build with ours and with datatrove, and once more with four times as much text.

    The larger corpus (not with `quick`) shows the speed once the start of two processes is a small part of the time.
    Every side has its median `_s` and `_mb_s`; `spread` is slowest to fastest run of ours.
    """
    figures = _compare(work, prose_files(), rounds=1 if quick else ROUNDS)
    if quick:
        return figures
    large = _compare(work, write_copies(work), rounds=1, name="large")
    remove(work, "copies", "large", "large.work")
    return figures | {f"large_{name}": value for name, value in large.items()}


def _compare(work: Path, files: list[Path], *, rounds: int, name: str = "set") -> Figures:
    recipe, size = prose_recipe(work, files=files), text_bytes(files) / MB
    # On two cores datatrove is fastest with as many tasks as processes, batches of 1,000, and one thread in each.
    sides = {
        "datatrove": partial(_run_datatrove, work, files[0].parent),
        "ours": partial(build, work, recipe, name=name),
    }
    seconds = {side: [usage.seconds for usage in found] for side, found in alternate(rounds, sides).items()}
    figures: Figures = {"text_mb": size}
    for side, found in seconds.items():
        figures |= {f"{side}_s": median(found), f"{side}_mb_s": size / median(found)}
    return figures | {
        "ratio": figures["datatrove_s"] / figures["ours_s"],
        "spread": max(seconds["ours"]) / min(seconds["ours"]),
    }


def _run_datatrove(work: Path, folder: Path) -> Usage:
    script = str(Path(__file__).with_name("datatrove_build.py"))
    arguments = [script, str(folder), str(work / "tokenizer.json"), str(work / "datatrove"), str(SHARD_TOKENS)]
    usage, _ = run_python(["-P", *arguments], RAYON_NUM_THREADS="1")
    remove(work, "datatrove")
    return usage


def bench_cleaned_build(work: Path, quick: bool) -> Figures:
    """Build with all four presets and near-duplicates, and without, by turns: `ratio` is the price of cleaning."""
    plain = prose_recipe(work)
    sides = {
        "plain": partial(build, work, plain, name="plain", keep=False),
        "cleaned": partial(build, work, plain + CLEAN, name="cleaned", keep=False),
    }
    found = alternate(1 if quick else CLEANED_ROUNDS, sides)
    seconds = {side: [usage.seconds for usage in usages] for side, usages in found.items()}
    return {
        **{f"{side}_s": min(own) for side, own in seconds.items()},
        "ratio": min(seconds["cleaned"]) / min(seconds["plain"]),
        "spread": max(max(own) / min(own) for own in seconds.values()),
    }


def bench_conversations(work: Path, quick: bool) -> Figures:
    """Encode copies of published conversations, and their text alone, by turns, in one task: `ratio` is of speeds."""
    if not CORPUS.is_dir():
        raise TopicSkippedError(f"no conversations in {CORPUS}")
    pairs = [(line["question"], line["answer"]) for line in read_lines("gsm8k-train.jsonl")]
    pairs = [(f"{copy} {question}", answer) for copy in range(10 if quick else 50) for question, answer in pairs]
    records = to_records([[("user", question), ("assistant", answer)] for question, answer in pairs])
    texts: dict[str, list[object]] = {
        "text": ["\n\n".join(pair) for pair in pairs],
        "messages": [record["messages"] for record in records],
    }
    seconds: dict[str, list[float]] = {column: [] for column in texts}
    for column, rows in texts.items():
        pq.write_table(pa.table({column: rows}), work / f"{column}.parquet")
    for column in [*texts] * (1 if quick else CLEANED_ROUNDS):
        recipe = recipe_text([work / f"{column}.parquet"], prose_tokenizer(work))
        if column == "messages":
            recipe = recipe.replace("weight = 1", 'weight = 1\nmessages = "messages"') + '[chat]\nformat = "chatml"\n'
        build(work, recipe, "--workers", "1", "--validate", "quick", name=column)
        stage = read_json(work / f"{column}.work/build.json")["stages"]["encode"]
        seconds[column].append(sum(stage["core_seconds"].values()))
        remove(work, column, f"{column}.work")
    figures: Figures = {f"{column}_s": min(own) for column, own in seconds.items()}
    spread = max(max(own) / min(own) for own in seconds.values())
    return figures | {"ratio": figures["text_s"] / figures["messages_s"], "spread": spread}


def bench_memory(work: Path, quick: bool) -> Figures:
    """Watch the peaks of a build's processes at one size of text, and at four times as much.

    There is no quicker variant: a stage of a single task runs in the command itself, and nothing would be compared.
    """
    del quick
    small = watch_build(work, prose_recipe(work))
    large = watch_build(work, prose_recipe(work, files=write_copies(work)))
    remove(work, "copies")
    figures: Figures = {}
    for name, few, many in zip(("command", "worker"), small, large, strict=True):
        figures |= {f"{name}_mb": few / MB, f"large_{name}_mb": many / MB, f"{name}_ratio": many / few}
    return figures

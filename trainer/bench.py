"""Measured throughput of recipes: tokens/s, MFU and peak memory of real training steps, beside transformers' Trainer.

`trainer.measure` says what is measured, `trainer.beside` what stands beside it. Each trainer has a process of its own,
so that neither finds the other's memory, caches or compiled code. One GPU, or the CPU; validation and checkpoints are
in no figure. Takes minutes a recipe, most of them to compile.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.command_line import positive_number, print_json
from trainer.errors import InputError, RunError

if TYPE_CHECKING:
    from trainer.config import TrainRecipe

GOALS = {"tinystories-91m": 1_000_000, "gpuburnout-1b": 75_000}
"""Tokens a second on an H200 that the shipped recipes should reach. They are measured by default."""

SETTINGS = ("parameters", "tokens_per_step", "micro_batch", "compile", "activation_checkpointing", "flops_per_token")

NOTES = """FLOP a token: 6 * weights that are multiplied + 12 * layers * hidden_size * seq_len, without recomputation.
Peak: what torch allocated after the warm-up; fit: what it expects of that, without margin and context. On a CPU the
peak is the growth of the process's resident memory. Loss: the first and the last step's, of made-up tokens."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    shipped = [Path(__file__).parents[1] / f"recipes/train/{name}.toml" for name in GOALS]
    names = f"default: {', '.join(GOALS)}"
    parser.add_argument("recipes", type=Path, nargs="*", default=shipped, metavar="RECIPE", help=names)
    parser.add_argument("--micro-batch", type=positive_number, metavar="N", help="default: the recipe's")
    parser.add_argument("--steps", type=positive_number, default=20, metavar="N", help="timed; default %(default)s")
    parser.add_argument("--warmup", type=positive_number, default=5, metavar="N", help="not timed; default %(default)s")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help="as in train")
    parser.add_argument("--beside", choices=["transformers", "none"], default="transformers", help="to compare with")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], help="default: the recipe's")


def run(options: argparse.Namespace) -> int:
    """Print what was measured; exit code 1 when a trainer ran out of memory, or theirs failed otherwise."""
    from trainer.recipe import load_recipe

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("bench measures one GPU; found torchrun's WORLD_SIZE. Start it as python -m trainer bench.")
    trainers = ["ours"] if options.beside == "none" else ["ours", options.beside]
    missing = [name for name in ("transformers", "accelerate") if importlib.util.find_spec(name) is None]
    if missing and options.beside != "none":
        raise InputError(f"--beside transformers: not installed: {', '.join(missing)}. Install it, or --beside none.")
    own = [f"train.micro_batch={options.micro_batch}"] if options.micro_batch else []
    own += [f'train.device="{options.device}"'] if options.device else []
    recipes = [load_recipe(path, [*options.overrides, *own]) for path in options.recipes]
    if nameless := [recipe.name for recipe in recipes if recipe.model.vocab_size is None]:
        raise InputError([f"{name}: no model.vocab_size. Add --set model.vocab_size=N." for name in nameless])
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # for the CPU, as train does
    results = [bench(recipe, trainers, steps=options.steps, warmup=options.warmup) for recipe in recipes]
    if options.json:
        print_json({"recipes": results})
    else:
        print_results(results, goals={} if any("model." in item for item in options.overrides) else GOALS)
    errors = [
        f"{r['recipe']}: {name}: {f['error']}" for r in results for name, f in r["trainers"].items() if "error" in f
    ]
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


def bench(recipe: TrainRecipe, trainers: list[str], *, steps: int, warmup: int) -> dict[str, Any]:
    """Measure a recipe under each of `trainers`: `ours`, `transformers`.

    Returns:
        The settings; `trainers`, each one's figures or `error`; `estimated_memory`, what `fit` expects torch to
        allocate for ours; `ratio`, our tokens/s to theirs. Bytes, losses in nats, seconds but for `_ms`.

    Raises:
        InputError: it cannot run here; as `train` says it.
        RunError: a process was killed.
    """
    from trainer import fit
    from trainer.measure import measure, write_made_up_set
    from trainer.model import count_parameters, flops_per_token

    model, train, measured = recipe.model, recipe.train, dict[str, Any]()
    spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with tempfile.TemporaryDirectory(prefix="trainer-bench-") as folder:
        shards = write_made_up_set(recipe, Path(folder))
        for name in trainers:
            print(f"{recipe.name}: {name}: {warmup} + {steps} steps", file=sys.stderr, flush=True)
            # What libraries print on stdout is no result: it goes where messages go.
            with ProcessPoolExecutor(1, spawn, initializer=os.dup2, initargs=(2, 1)) as pool:
                try:
                    measured[name] = pool.submit(measure, name, recipe, shards, steps, warmup).result()
                except BrokenProcessPool as error:
                    raise RunError(f"{recipe.name}: {name}: its process was killed. Out of memory?") from error
    ours = measured["ours"]
    resolved = recipe.model_copy(update={"train": train.model_copy(update={"precision": ours["precision"]})})
    estimate = fit.estimate(resolved, 1 << 62, fit.measure(resolved))
    choice = train.activation_checkpointing
    rows = [row for row in estimate["estimates"] if row["activation_checkpointing"] == choice]
    needs = {row["micro_batch"]: row["total"] for row in rows}
    if "error" in ours:
        ours["error"] += advise(needs, train.micro_batch, int((ours["device_memory"] or 0) * (1 - fit.MARGIN)))
    speeds = ours.get("tokens_per_s"), measured.get("transformers", {}).get("tokens_per_s")
    return {
        "recipe": recipe.name,
        "parameters": count_parameters(model, model.vocab_size or 0),
        "micro_batch": train.micro_batch,
        "tokens_per_step": train.global_batch * train.seq_len,
        "compile": train.compile,
        "activation_checkpointing": choice,
        "flops_per_token": flops_per_token(model, model.vocab_size or 0, train.seq_len),
        "estimated_memory": needs[train.micro_batch] - estimate["context"],  # which torch does not count
        "ratio": speeds[0] / speeds[1] if speeds[0] and speeds[1] else None,
        "trainers": measured,
    }


def advise(needs: dict[int, int], micro_batch: int, usable: int) -> str:
    """Return which smaller micro-batch fits in `usable` bytes, by what each needs."""
    fitting = [size for size, need in needs.items() if size < micro_batch and need <= usable]
    smaller = f"the next smaller that fits is {max(fitting)}: --micro-batch {max(fitting)}" if fitting else "none fits"
    return f" with train.micro_batch = {micro_batch}. By `fit` {smaller}. Or --set train.activation_checkpointing."


def print_results(results: list[dict[str, Any]], goals: dict[str, int]) -> None:
    """Print the table, and under it what was measured and what the figures mean."""
    from shards.display import plain_table, stdout_console

    columns = ("tokens/s", "step ms", "fastest-slowest", "MFU", "peak GB", "loss", "warm-up s", "data wait ms")
    table, lines = plain_table("recipe: trainer", *columns, "fit GB (of peak)", "ours/theirs"), list[str]()
    for result in results:
        ours, goal, estimate = result["trainers"]["ours"], goals.get(result["recipe"]), result["estimated_memory"]
        for name, figures in result["trainers"].items():
            if "error" in figures:
                table.add_row(f"{result['recipe']}: {name}", "failed")
                continue
            cells = ["{tokens_per_s:,.0f}", "{step_ms:,.1f}", "{fastest_ms:,.1f}-{slowest_ms:,.1f}"]
            cells += ["{mfu:.1%}" if figures["mfu"] else "-", "{peak_memory:,.2f}", "{loss_first:.3f}, {loss_last:.3f}"]
            cells += ["{warmup_s:,.1f}"]
            if name == "ours":
                cells += ["{data_wait_ms:.2f}", f"{estimate / 1e9:,.2f} ({estimate / figures['peak_memory']:.0%})"]
                cells += [f"{result['ratio']:.2f}"] if result["ratio"] else []
            shown = figures | {"peak_memory": figures["peak_memory"] / 1e9}
            table.add_row(f"{result['recipe']}: {name}", *(cell.format(**shown) for cell in cells))
        settings = ", ".join(f"{key.replace('_', ' ')} {result[key]}" for key in SETTINGS)
        lines.append(f"{result['recipe']} on {ours['device']}, {ours['precision']}: {settings}")
        if goal and "H200" in ours["device"]:
            met = "met" if ours.get("tokens_per_s", 0) >= goal else "missed"
            lines.append(f"  goal on an H200, at least {goal:,} tokens/s: {met}")
    stdout_console().print(table, *lines, NOTES, sep="\n")

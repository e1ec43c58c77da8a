"""Dollars per billion tokens, and for a whole recipe, on GPUs at prices that you enter.

There is no table of prices: it would be wrong within weeks. Throughput is entered, measured (`--run`), or scaled from
the first known one by the cards' peak bf16 FLOP/s: as if both reached the same fraction of their peak, which small
models do not; the table says which numbers are scaled. Validation, saving and setting up the machine are not counted.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

from shards.command_line import print_json
from trainer.errors import InputError
from trainer.gpus import PEAK_TFLOPS, card_key, peak_tflops

Gpu = tuple[str, float, float | None]
"""A card's name, dollars an hour, tokens a second where known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="a train recipe (TOML)")
    about = "a card, its price an hour and, if you know it, its throughput: H100=2.49:400000. Repeat it. Without a "
    about += f"throughput it is scaled from another card's; known to scale: {', '.join(PEAK_TFLOPS)}"
    card = {"required": True, "metavar": "NAME=USD[:TOKENS_PER_S]", "help": about}
    parser.add_argument("--gpu", action="append", **card)
    parser.add_argument("--run", type=Path, metavar="RUN", help="take a run's throughput (its metrics.jsonl)")
    parser.add_argument("--run-gpu", metavar="NAME", help="the card that RUN was measured on; default: the first --gpu")


def run(options: argparse.Namespace) -> int:
    """Print the comparison, the cheapest card first."""
    from shards.display import print_rows
    from trainer.recipe import load_recipe

    if options.run_gpu and not options.run:
        raise InputError("--run-gpu: names the card of a run. Expected --run, too.")
    train = load_recipe(options.recipe).train
    gpus = [parse_gpu(text) for text in options.gpu]
    measured = (options.run_gpu or gpus[0][0], measure_throughput(options.run)) if options.run else None
    tokens = train.steps * train.global_batch * train.seq_len
    costs = compare(gpus, tokens, measured)
    if options.json:
        print_json({"tokens": tokens, "gpus": costs})
    else:
        print_rows(costs, title=f"{train.steps:,} steps, {tokens:,} tokens")
    return 0


def parse_gpu(text: str) -> Gpu:
    """Parse `NAME=USD_PER_HOUR[:TOKENS_PER_S]`; raises InputError when it is not that."""
    name, _, numbers = text.partition("=")
    try:
        values = [float(number.replace(",", "")) for number in numbers.split(":")]
    except ValueError:
        values = []
    if not name or len(values) not in (1, 2) or not all(0 < value < math.inf for value in values):
        raise InputError(f"--gpu {text}: expected NAME=USD_PER_HOUR[:TOKENS_PER_S], such as H100=2.49:400000")
    return name, values[0], values[1] if len(values) == 2 else None


def measure_throughput(run: Path) -> float:
    """Return a run's median tokens/s, without its first tenth (compilation); raises InputError when there is none."""
    from trainer.metrics import METRICS_FILE, read_metrics

    records = read_metrics(run) if (run / METRICS_FILE).is_file() else []
    speeds = [record["tokens_per_s"] for record in records if record.get("tokens_per_s")]
    if not speeds or not all(isinstance(speed, int | float) for speed in speeds):
        raise InputError(f"{run / METRICS_FILE}: no step with a throughput, or no number. Expected a run's folder.")
    return statistics.median(speeds[len(speeds) // 10 :])


def compare(gpus: list[Gpu], tokens: int, measured: tuple[str, float] | None = None) -> list[dict[str, Any]]:
    """Return what `tokens` cost on each card, the cheapest first; `measured` is a card's name and tokens/s.

    Raises:
        InputError: a throughput is missing and cannot be scaled.
    """
    known = ([measured] if measured else []) + [(name, speed) for name, _, speed in gpus if speed]
    base, base_speed = known[0] if known else ("", 0.0)
    costs: list[dict[str, Any]] = []
    problems: list[str] = []
    for name, price, entered in gpus:
        speed, origin = entered or 0.0, "entered"
        if not entered and measured and card_key(name) == card_key(base):
            speed, origin = base_speed, "measured"
        elif not entered and (peak := peak_tflops(name)) and (base_peak := peak_tflops(base)):
            speed, origin = base_speed * peak / base_peak, "scaled"
        if not speed:
            problems.append(f"--gpu {name}: its tokens/s is not known. Enter it: {name}=USD_PER_HOUR:TOKENS_PER_S")
            continue
        hours = tokens / speed / 3600
        cost = {"gpu": name, "usd_per_hour": price, "tokens_per_s": speed, "throughput": origin}
        cost |= {"usd_per_billion_tokens": price / (speed * 3600) * 1e9, "recipe_hours": hours}
        costs.append(cost | {"recipe_usd": hours * price})
    if problems:
        raise InputError(problems)
    return sorted(costs, key=lambda cost: cost["usd_per_billion_tokens"])

"""Dollars per billion tokens, and for a whole recipe, on GPUs at prices that you enter.

There is no table of prices: it would be wrong within weeks. Throughput is entered, measured by a run, or scaled from
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
from trainer.gpus import PEAK_TFLOPS, peak_tflops

Gpu = tuple[str, float, float | None, str]
"""A card's name, dollars an hour, tokens a second where known, and whether that was `measured` or `entered`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="a train recipe (TOML)")
    about = "a card, its price an hour and, if you know it, its throughput, or a run on it that measured this: "
    about += "H100=2.49:400000, H100=2.49:out/run. Repeat it. Without a throughput it is scaled from another card's; "
    about += f"known to scale: {', '.join(PEAK_TFLOPS)}"
    parser.add_argument("--gpu", action="append", required=True, metavar="NAME=USD[:TOKENS_PER_S|:RUN]", help=about)


def run(options: argparse.Namespace) -> int:
    """Print the comparison, the cheapest card first."""
    from shards.display import print_rows
    from trainer.recipe import load_recipe

    train = load_recipe(options.recipe).train
    tokens = train.steps * train.global_batch * train.seq_len
    costs = compare([parse_gpu(text) for text in options.gpu], tokens)
    if options.json:
        print_json({"tokens": tokens, "gpus": costs})
    else:
        print_rows(costs, title=f"{train.steps:,} steps, {tokens:,} tokens")
    return 0


def parse_gpu(text: str) -> Gpu:
    """Parse `NAME=USD_PER_HOUR[:TOKENS_PER_S]`, or with a run's folder; raises InputError when it is not that."""
    name, _, figures = text.partition("=")
    price, colon, speed = figures.partition(":")
    if measured := bool(speed) and Path(speed).is_dir():
        speed = str(measure_throughput(Path(speed)))
    try:
        numbers = [float(number.replace(",", "")) for number in ((price, speed) if colon else (price,))]
    except ValueError:
        numbers = []
    if not name or not numbers or not all(0 < number < math.inf for number in numbers):
        expected = "expected NAME=USD_PER_HOUR[:TOKENS_PER_S], such as H100=2.49:400000, or :RUN, a run's folder"
        raise InputError(f"--gpu {text}: {expected}")
    return name, numbers[0], numbers[1] if colon else None, "measured" if measured else "entered"


def measure_throughput(run: Path) -> float:
    """Return a run's median tokens/s of one card, without its first tenth (compilation).

    Raises:
        InputError: there is none.
    """
    from trainer.metrics import METRICS_FILE, read_metrics

    records = read_metrics(run) if (run / METRICS_FILE).is_file() else []
    steps = [record for record in records if record.get("tokens_per_s")]
    try:
        speeds = [record["tokens_per_s"] / record.get("ranks", 1) for record in steps]
        return statistics.median(speeds[len(speeds) // 10 :])
    except (TypeError, ZeroDivisionError, statistics.StatisticsError) as error:
        found = "no step with a throughput, or no number"
        raise InputError(f"{run / METRICS_FILE}: {found}. Expected a run's folder.") from error


def compare(gpus: list[Gpu], tokens: int) -> list[dict[str, Any]]:
    """Return what `tokens` cost on each card, the cheapest first.

    Raises:
        InputError: a throughput is missing and cannot be scaled.
    """
    base, base_speed = next(((name, speed) for name, _, speed, _ in gpus if speed), ("", 0.0))
    costs: list[dict[str, Any]] = []
    problems: list[str] = []
    for name, price, speed, origin in gpus:
        if not speed and (peak := peak_tflops(name)) and (base_peak := peak_tflops(base)):
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

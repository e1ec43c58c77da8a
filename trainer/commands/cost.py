"""Compare GPUs in dollars per billion tokens, and for a whole recipe, at prices that you enter.

There is no table of prices: it would be wrong within weeks. Throughput is entered (`tokenmill bench` measures it in
minutes) or taken from a run; it is not guessed from another card's, for small models reach very different fractions of
the cards' peaks. Validation, saving and setting up the machine are not counted.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError, plural
from shards.terminal.arguments import parse_path
from shards.terminal.program import Outcome, Row

if TYPE_CHECKING:
    from trainer.recipe import TrainRecipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `cost`."""
    parser.add_argument("recipe", type=parse_path, metavar="RECIPE", help="a train recipe (TOML)")
    about = (
        "a GPU, its price per hour, and its tokens per second or a training run that measured them: H100=2.49:400000, "
    )
    about += "H100=2.49:out/run. Repeat the flag for each GPU"
    parser.add_argument("--gpu", action="append", required=True, metavar="NAME=USD:TOKENS_PER_S|RUN", help=about)


def run(options: argparse.Namespace) -> Outcome:
    """Return the comparison, the cheapest card first."""
    from trainer.recipe import load_train_recipe

    recipe = load_train_recipe(options.recipe)
    train = recipe.train
    tokens = train.steps * train.global_batch * train.seq_len
    costs = sorted((price(text, recipe, tokens) for text in options.gpu), key=lambda c: c["usd_per_billion_tokens"])
    title = f"{plural(train.steps, 'step')}, {plural(tokens, 'token')}"
    return Outcome({"tokens": tokens, "gpus": costs}, [title, costs])


def price(text: str, recipe: TrainRecipe, tokens: int) -> Row:
    """Return what tokens cost on a card, `NAME=USD_PER_HOUR:TOKENS_PER_S` or with a run's folder in the last place.

    Raises:
        InputError: it is not that.
    """
    # NAME=USD:SPEED, where the speed may be a run that measured it.
    name, _, figures = text.partition("=")
    usd_per_hour, _, speed = figures.partition(":")
    measured = measure_throughput(Path(speed), recipe) if speed and Path(speed).is_dir() else None
    try:
        usd, tokens_per_s = float(usd_per_hour), measured or float(speed.replace(",", ""))
    except ValueError:
        usd = tokens_per_s = 0.0
    if not name or not all(1e-6 <= number <= 1e12 for number in (usd, tokens_per_s)):
        expected = "expected NAME=USD_PER_HOUR:TOKENS_PER_S, such as H100=2.49:400000, or :RUN, a training run"
        raise InputError(f"--gpu {text}: {expected}")
    # What the whole recipe takes, and its price.
    hours = tokens / tokens_per_s / 3600
    cost = {"gpu": name, "usd_per_hour": usd, "tokens_per_s": tokens_per_s}
    cost |= {"throughput": "measured" if measured else "entered", "usd_per_billion_tokens": hours * usd / tokens * 1e9}
    return cost | {"recipe_hours": hours, "recipe_usd": hours * usd}


def measure_throughput(run: Path, recipe: TrainRecipe) -> float:
    """Return a run's median tokens/s of one card, for their cost; without its first tenth (compilation).

    Raises:
        InputError: there is none, or it is another model's.
    """
    from trainer.metrics import METRICS_FILE, read_metrics
    from trainer.recipe import load_train_recipe

    # Another model or length would have another speed.
    trained = load_train_recipe(run / "recipe.json")
    if (trained.model, trained.train.seq_len) != (recipe.model, recipe.train.seq_len):
        found = "trained another model, or with another seq_len, than the recipe's"
        raise InputError(f"{run}: {found}. Measure that: tokenmill bench")
    records = read_metrics(run) if (run / METRICS_FILE).is_file() else []
    speeds = [record["tokens_per_s"] / record.get("ranks", 1) for record in records if record.get("tokens_per_s")]
    if not speeds:
        raise InputError(f"{run / METRICS_FILE}: no step with a throughput. Expected the folder of a training run.")
    return statistics.median(speeds[len(speeds) // 10 :])

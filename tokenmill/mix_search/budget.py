"""How many arms a search has: as the file says, or as many as its tokens or dollars pay; and the arms of each round."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from pipeline.engine.tasks import digest_of
from shards.errors import InputError, plural
from shards.stores.files import write_text
from tokenmill.experiments.ablation import Ablation
from tokenmill.experiments.price import price_ablation
from tokenmill.mix_search.schema import MOST_ARMS, MixSearchConfig

BUDGET_FILE = "budget.json"
"""In the folder of the search: the price of a training when the search began, so that later calls have as many arms."""
_FIRST_ROUND = 0.5
"""The part of the arms that fills the space."""


def count_trainings(config: MixSearchConfig, arms: int) -> int:
    """Return how many trainings a search of so many arms takes, those of the last comparison included."""
    # The winner has the last seeds alone; the recipe's own mix has those and the others.
    own = len({*config.seeds, *config.last_seeds})
    return own + (arms - 2) * len(config.seeds) + len(config.last_seeds)


def count_arms(file: Path, config: MixSearchConfig, own: Ablation, out: Path) -> int:
    """Return the arms of a search.

    Args:
        file: the file of the search.
        config: what it says.
        own: the ablation with the recipe's own mix.
        out: the folder of the search.

    Raises:
        InputError: dollars, and the train recipe has no price, or the budget pays not one arm.
    """
    if config.arms is not None:
        return config.arms
    # How many trainings the budget pays.
    tokens = own.arms[0].tokens
    if config.budget_tokens is not None:
        trainings = config.budget_tokens // tokens
        shown = f"budget_tokens = {config.budget_tokens:,}: a training takes {tokens:,}"
    else:
        assert config.budget_usd is not None
        price = _price_training(file, own, out)
        trainings = int(config.budget_usd / price)
        shown = f"budget_usd = {config.budget_usd:g}: a training takes about ${price:.4f}"
    # The recipe's own mix and the winner come first; others take one training for each seed.
    arms = 2 + (trainings - count_trainings(config, 2)) // len(config.seeds)
    if arms < 3:
        raise InputError(
            f"{file}: {shown}, so that {trainings:,} are paid: {count_trainings(config, 2):,} of the recipe's own mix "
            "and the winner, and not one other arm. Give more, fewer tokens to each, or fewer seeds."
        )
    if arms > MOST_ARMS:
        raise InputError(
            f"{file}: {shown}: {plural(arms, 'arm')} are paid, and {MOST_ARMS:,} are the most. Give less, or more "
            "tokens to each training."
        )
    return arms


def _price_training(file: Path, own: Ablation, out: Path) -> float:
    """Return the dollars of one training, as they were when the search began."""
    arm = own.arms[0]
    if not arm.train.cost.gpu_usd_per_hour:
        raise InputError(f"{file}: budget_usd: the train recipe has no price. Give cost.gpu_usd_per_hour in it.")
    # Measured once for a recipe and its threads.
    key = digest_of([arm.train.model_dump(mode="json"), own.config.threads])
    known = out / BUDGET_FILE
    # A file that is damaged is measured again.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(known.read_bytes())
        if kept["key"] == key:
            return float(kept["usd"])
    row = price_ablation(own, own.trainings)[0]
    if row["dollars"] is None:
        raise InputError(f"{file}: budget_usd: no step could be measured on this machine. Give arms instead.")
    usd = row["dollars"] / len(own.trainings)
    out.mkdir(parents=True, exist_ok=True)
    write_text(known, json.dumps({"key": key, "usd": usd}) + "\n")
    return usd


def split_rounds(arms: int, rounds: int, parameters: int) -> list[int]:
    """Return the arms of each round, without the recipe's own mix and the winner; the first is enough for a fit."""
    left = arms - 2
    first = left if rounds == 1 else min(left, max(parameters, round(_FIRST_ROUND * left)))
    later = [(left - first) // (rounds - 1) for _ in range(rounds - 1)]
    for index in range((left - first) - sum(later)):
        later[index] += 1
    return [first, *filter(None, later)]

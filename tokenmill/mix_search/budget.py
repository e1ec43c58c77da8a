"""How many arms a search has: as the file says, or as many as its tokens pay; and the arms of each round."""

from __future__ import annotations

from pathlib import Path

from shards.errors import InputError, plural
from tokenmill.experiments.ablation import Ablation
from tokenmill.mix_search.schema import MOST_ARMS, MixSearchConfig

_FIRST_ROUND = 0.5
"""The part of the arms that fills the space."""


def count_trainings(config: MixSearchConfig, arms: int) -> int:
    """Return how many trainings a search of so many arms takes, those of the last comparison included."""
    # The winner has the last seeds alone; the recipe's own mix has those and the others.
    own = len({*config.seeds, *config.last_seeds})
    return own + (arms - 2) * len(config.seeds) + len(config.last_seeds)


def count_arms(file: Path, config: MixSearchConfig, own: Ablation) -> int:
    """Return the arms of a search.

    Args:
        file: the file of the search.
        config: what it says.
        own: the ablation with the recipe's own mix.

    Raises:
        InputError: the budget pays not one arm, or too many.
    """
    if config.arms is not None:
        return config.arms
    # How many trainings the budget pays.
    tokens = own.arms[0].tokens
    assert config.budget_tokens is not None  # the file has one of both
    trainings = config.budget_tokens // tokens
    shown = f"budget_tokens = {config.budget_tokens:,}: a training takes {tokens:,}"
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


def split_rounds(arms: int, rounds: int, parameters: int) -> list[int]:
    """Return the arms of each round, without the recipe's own mix and the winner; the first is enough for a fit."""
    left = arms - 2
    first = left if rounds == 1 else min(left, max(parameters, round(_FIRST_ROUND * left)))
    later = [(left - first) // (rounds - 1) for _ in range(rounds - 1)]
    for index in range((left - first) - sum(later)):
        later[index] += 1
    return [first, *filter(None, later)]

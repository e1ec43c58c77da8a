"""The vocabulary size that `fit`, `cost` and `bench` take for a recipe without one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import plural
from shards.terminal.arguments import parse_place

if TYPE_CHECKING:
    from trainer.recipe import TrainRecipe


ASSUMED_VOCAB_SIZE = 50_257
"""For a recipe without a vocabulary size: GPT-2's, larger than those of our recipes, so that no estimate is too low."""


def add_set_of_vocabulary(parser: argparse.ArgumentParser) -> None:
    """Add `--shards`, the set whose vocabulary a recipe without `model.vocab_size` gets."""
    assumed = (
        f"a shard set, for the vocabulary size of a recipe without one (default: {ASSUMED_VOCAB_SIZE:,}, as GPT-2)"
    )
    parser.add_argument("--shards", type=parse_place, metavar="SET", help=assumed)


def settle_vocabulary(recipe: TrainRecipe, shards: Path | str | None) -> TrainRecipe:
    """Return a recipe with a vocabulary size: its own, a set's, or an assumed one, which is then printed.

    Raises:
        ShardSetError: the set cannot be opened.
    """
    from shards import open_set
    from shards.terminal.display import say

    if recipe.model.vocab_size is not None:
        return recipe
    vocab_size = ASSUMED_VOCAB_SIZE
    if shards is not None:
        vocab_size = open_set(shards).vocab_size
    else:
        remedy = "Name the shard set with --shards SET, or add --set model.vocab_size=N"
        say(f"{recipe.name}: no model.vocab_size; {plural(vocab_size, 'id')} are assumed, as GPT-2 has. {remedy}.")
    model = recipe.model.model_copy(update={"vocab_size": vocab_size})
    return recipe.model_copy(update={"model": model})

"""The file of an ablation: recipes for the data and the training, seeds, and arms that each change some keys."""

from collections.abc import Iterator
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field, JsonValue

from pipeline.recipe.key_values import Name, SomeTokens, distinct
from shards.config import Document, Settings, Text, shared_names, table_of

Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 32)]], Field(min_length=1), AfterValidator(distinct)]


class ArmConfig(Settings):
    """One alternative of an ablation. The first is the one that the others are compared with."""

    name: Name
    """The name of the arm, and of its folders."""
    data: dict[str, JsonValue] = {}
    """Keys of the data recipe with this arm's values: `data.sources.maths.weight = 20`."""
    train: dict[str, JsonValue] = {}
    """Keys of the train recipe with this arm's values: `train.optimizer.lr = 1e-3`."""


class ExperimentConfig(Settings):
    """What experiments have in common: recipes, and how small models are trained on the sets of their arms."""

    name: Text
    """The name of the experiment."""
    data: Text
    """The data recipe that all arms begin with: a path from this file's folder, or the name of a shipped recipe."""
    train: Text
    """The train recipe that all arms begin with: a small model with eval sets and tasks. Its phases and prompts are
    left out."""
    seeds: Seeds = [1, 2, 3]
    """One training of each arm for each seed. Equal seeds begin with equal weights and read windows in one order."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Threads of each training on a CPU. The losses depend on them."""


class AblationConfig(ExperimentConfig):
    """An ablation: training runs that differ in one decision."""

    tokens: SomeTokens | None = None
    """Tokens of each training, instead of the train recipe's steps."""
    scores: Annotated[list[str], AfterValidator(distinct)] = []
    """Scores to compare, such as `web_bpb`; when absent, all."""
    arms: Annotated[list[ArmConfig], Field(min_length=2)]
    """The alternatives, two or more."""

    def rules(self) -> Iterator[str]:
        """Yield the faults between the arms of an ablation."""
        for name, count in shared_names(self.arms):
            yield f"arms: {count} arms are named {name!r}. Give each a unique name."
        for arm in self.arms:
            if "seed" in table_of(table_of(arm.train).get("train")):
                yield f"arms.{arm.name}.train.train.seed: each training has one of the `seeds`. Leave it out."


def flatten_keys(tables: Document, parents: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each key of an arm's nested tables that holds no table, as its parts, with its value."""
    for key, value in tables.items():
        if isinstance(value, dict) and value:
            yield from flatten_keys(cast("dict[str, Any]", value), (*parents, key))
        else:
            yield (*parents, key), value

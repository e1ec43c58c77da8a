"""The file of a mix search: bounds of the sources' shares, the objective, and what the search may cost."""

from itertools import islice
from typing import Annotated

from pydantic import AfterValidator, Field

from pipeline.recipe.key_values import Proportion, SomeTokens, Weight
from tokenmill.experiments.schema import ExperimentConfig, Seeds


def _check_order(pair: list[float]) -> list[float]:
    if pair[0] > pair[1]:
        raise ValueError("the least share is above the greatest. Exchange them")
    return pair


Bounds = Annotated[list[Proportion], Field(min_length=2, max_length=2), AfterValidator(_check_order)]


class MixSearchConfig(ExperimentConfig):
    """A mix search: which shares of the sources give the best scores. Its arms are mixes of one recipe."""

    tokens: SomeTokens
    """Tokens of each training."""
    final_seeds: Seeds | None = None
    """Seeds of the last comparison, of the winner with the recipe's weights; when absent, three new ones or more."""
    target_tokens: SomeTokens | None = None
    """Training tokens of the real run; when absent, `mix.tokens` of the data recipe. Small models repeat a scarce
    source as often as that run will."""
    bounds: Annotated[dict[str, Bounds], Field(min_length=1)]
    """By source, the least and the greatest share: `maths = [0.0, 0.4]`. Other sources share the rest by the recipe's
    weights."""
    objective: Annotated[dict[str, Weight], Field(min_length=1)]
    """Scores with their weights: `{ web_bpb = 2, maths_bpb = 1 }`. The search lowers their weighted mean. Bits per byte
    only."""
    arms: Annotated[int, Field(ge=1, le=1000)]
    """How many mixes are trained, with the recipe's and the winner."""
    rounds: Annotated[int, Field(ge=1, le=20)] = 3
    """Rounds of arms: the first fills the space within the bounds, later ones are nearer to the best of the fit."""
    resamples: Annotated[int, Field(ge=50, le=100_000)] = 400
    """Resamples of the bootstrap for the intervals."""

    @property
    def last_seeds(self) -> list[int]:
        """The seeds of a mix search's last comparison."""
        count = max(3, len(self.seeds))
        new = (seed for seed in range(1, count + len(self.seeds) + 1) if seed not in self.seeds)
        return self.final_seeds or [*islice(new, count)]

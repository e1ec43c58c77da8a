"""Matched repetition: small models see a scarce source as often as the real run will, whatever its share of the mix.

A run of T tokens at share w takes w T tokens of a source of A tokens: w T / A epochs. A model of t tokens takes w t of
the source's part t / T: as many epochs, for any w. Sources that the real run does not use up stay whole: neither run
repeats them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pipeline.plan.plan import plan_set
from pipeline.recipe.schema import Recipe
from shards.errors import InputError, plural
from tokenmill.mix_search.schema import MixSearchConfig
from tokenmill.mix_search.space import MixSpace

_FEWEST_DOCUMENTS = 10
"""A part of a source with fewer documents says nothing of the source."""
_SURE = 1.1
"""Bounds are refused if even this many times the tokens measured would be too few."""


class SourceSize(NamedTuple):
    """What a source has for the real run, by the estimate of `plan`."""

    tokens: int | None
    """Its tokens; None if it has more than the real run can take within the bounds."""
    take: float
    """The part of its documents in the sets of the arms."""


def measure_sources(file: Path, config: MixSearchConfig, recipe: Recipe, space: MixSpace) -> dict[str, SourceSize]:
    """Return what each source has for the real run, and the part of it that the arms take.

    Raises:
        InputError: the target is unknown or too small, a bound repeats a source more often than `mix.max_epochs`
            allows, or an arm would see too few documents of a source.
    """
    target = find_target(file, config, recipe)
    greatest = space.greatest()
    # A plan in which each source has its greatest share of the target tells whether that is more than it has.
    sources = [one.model_copy(update={"weight": max(greatest[one.name], 1e-9)}) for one in recipe.sources]
    most = {"tokens": max(1, int(target * sum(greatest.values()))), "when_short": "shrink"}
    planned = plan_set(recipe.model_copy(update={"sources": sources, "mix": recipe.mix.model_copy(update=most)}))
    sizes: dict[str, SourceSize] = {}
    problems: list[str] = []
    for source, found in zip(recipe.sources, planned.sources, strict=True):
        # How often the real run would take the source at its greatest share.
        epochs = greatest[source.name] * target / max(1, found.tokens)
        if found.has_more or epochs <= 1:
            sizes[source.name] = SourceSize(None if found.has_more else found.tokens, source.take)
            continue
        take = source.take * config.tokens / target
        sizes[source.name] = SourceSize(found.tokens, take)
        place = f"{file}: bounds: {source.name!r} has about {plural(found.tokens, 'token')}"
        if epochs > recipe.mix.max_epochs * _SURE:
            share = recipe.mix.max_epochs * found.tokens / target
            problems.append(
                f"{place}: its greatest share, {greatest[source.name]:.4g} of {target:,}, repeats it {epochs:.1f} "
                f"times, and mix.max_epochs is {recipe.mix.max_epochs}. Give it a bound of at most {share:.4f}, or "
                "raise mix.max_epochs in the data recipe."
            )
        # How many documents an arm would see.
        left = found.documents * config.tokens / target
        if left < _FEWEST_DOCUMENTS:
            problems.append(
                f"{place}: models of {plural(config.tokens, 'token')} would see about "
                f"{plural(round(left), 'document')} of it, to repeat them as often as the real run of {target:,}. "
                "Give more tokens to each model."
            )
    if problems:
        raise InputError(problems)
    return sizes


def find_target(file: Path, config: MixSearchConfig, recipe: Recipe) -> int:
    """Return the training tokens of the real run.

    Raises:
        InputError: neither file says them, or they are fewer than those of a model.
    """
    given = recipe.mix.tokens if config.target_tokens is None else config.target_tokens
    if given == "max":
        raise InputError(
            f'{file}: target_tokens: required key is missing: the data recipe has mix.tokens = "max". Give the tokens '
            "of the real run: the small models repeat scarce sources as often."
        )
    if given < config.tokens:
        raise InputError(
            f"{file}: tokens = {config.tokens:,}: more than the {given:,} of the real run. Give fewer, or raise "
            "target_tokens."
        )
    return given

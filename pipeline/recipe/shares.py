"""Shares: how many tokens a recipe needs from each source, how many the sources allow, and what is missing.

    asked    = mix.tokens x weight / sum of the weights; of split.val_tokens every source gives the same share
    allowed  = tokens left for training x passes / share; passes is mix.max_epochs if when_short is "repeat", else 1
    granted  = what is asked, or what the scarcest source allows if that is less and when_short is "shrink"

With phases, a source's share of the set is the sum over the phases of phase share x source's share in the phase. It
decides what is asked, allowed and held out for validation; the shares of each phase decide what its shards hold.

Without weights, all text is in the set once: for validation, a source's weight is its tokens, for training, those that
are left. Then every source allows the same set, of all of them.

The selection of files, the disk check, the estimate and the mix all use these rules, so that they agree to the token.
Fractions are exact: errors of rounding are never added up.
"""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any

from pipeline.recipe.key_values import parse_count
from pipeline.recipe.schema import MAX_EPOCHS, Recipe
from shards.errors import plural


@dataclass(frozen=True)
class Shares:
    """The exact share of each weight in their sum."""

    weights: tuple[float | Fraction, ...]

    @cached_property
    def fractions(self) -> tuple[Fraction, ...]:
        """The shares of the sources, one fraction each; they add up to 1."""
        exact = [Fraction(str(weight)) for weight in self.weights]
        total = sum(exact) or 1
        return tuple(weight / total for weight in exact)

    def by_name(self, recipe: Recipe) -> dict[str, float]:
        """Return the share of each source, by its name."""
        return dict(zip(recipe.source_names, map(float, self.fractions), strict=True))

    def of(self, source: int, total: int) -> int:
        """Return the source's share of a total, rounded down."""
        return int(self.fractions[source] * total)


@dataclass(frozen=True)
class Phase:
    """A phase of the mix: its share of the training tokens, and the shares of the sources in it."""

    name: str | None
    """None: the recipe has no phases, and this is the whole training split."""
    share: Fraction
    shares: Shares


@dataclass(frozen=True, slots=True)
class Grant:
    """The training tokens that a set gets from its sources, and what limits them."""

    train_tokens: int
    limit: int | None
    """Training tokens that the sources allow at these weights; None if no source bounds the set."""
    scarcest: int | None
    """Index of the source that allows the fewest."""
    fault: str = ""
    """Why the recipe must be refused, with the remedy; empty if it need not be."""


class Demand:
    """The tokens that a recipe needs from its sources, EOS included."""

    def __init__(self, recipe: Recipe, found: Sequence[float] | None = None):
        """State the demand of a recipe.

        Args:
            recipe: the recipe.
            found: the weights of the sources of a recipe without weights: what they have; all the same when None.
        """
        self.recipe = recipe
        given = [1 if source.weight is None else source.weight for source in recipe.sources]
        if found and not recipe.has_weights:
            given = [own and have for own, have in zip(given, found, strict=True)]
        self.weights = tuple(map(float, given))
        """Of the sources, as the recipe or `found` gives them."""
        self.phases = _list_phases(recipe, self.weights)
        """The phases in order; one without a name if the recipe has none."""
        parts = [[phase.share * fraction for fraction in phase.shares.fractions] for phase in self.phases]
        self.shares = Shares(tuple(map(sum, zip(*parts, strict=True))))
        """The shares of the sources in the whole set."""
        self.passes = recipe.mix.max_epochs if recipe.mix.when_short == "repeat" else 1
        """How often a training document may occur."""
        self.val_shards = -(-recipe.split.val_tokens // recipe.shards.tokens)
        """Shards of validation, unless long documents make fewer."""

    def val_tokens(self, source: int) -> int:
        """Return the tokens that validation needs from a source."""
        return self.shares.of(source, self.recipe.split.val_tokens)

    def tokens(self, source: int, train_tokens: int) -> int:
        """Return the tokens that both splits need from a source if the set has `train_tokens` training tokens."""
        return self.shares.of(source, train_tokens) + self.val_tokens(source)

    def phase_tokens(self, train_tokens: int) -> list[int]:
        """Return the training tokens that each phase needs: whole numbers that add up to `train_tokens`."""
        ends = [int(end * train_tokens) for end in itertools.accumulate(phase.share for phase in self.phases)]
        return [end - begin for begin, end in itertools.pairwise([0, *ends])]

    def phase_shards(self, train_tokens: int) -> list[int]:
        """Return the shards of each phase, as many as its share of the tokens needs."""
        return [-(-tokens // self.recipe.shards.tokens) for tokens in self.phase_tokens(train_tokens)]

    def last_phase(self, source: int) -> int:
        """Return the index of the last phase that needs documents of a source."""
        return max((p for p, phase in enumerate(self.phases) if phase.shares.fractions[source]), default=0)

    def train_targets(self, source: int, train_tokens: int, shards: Sequence[int]) -> list[int]:
        """Return the running targets of a source's share: `sum(shards) + 1` numbers from 0 to its training tokens.

        Args:
            source: index of the source.
            train_tokens: training tokens of the set.
            shards: the number of shards of each phase.
        """
        targets, begin = [0], Fraction(0)
        for phase, number in zip(self.phases, shards, strict=True):
            share = phase.shares.fractions[source] * phase.share * train_tokens
            targets += [int(begin + share * shard / number) for shard in range(1, number + 1)]
            begin += share
        return targets

    def limit(self, source: int, available: float) -> int:
        """Return the training tokens of the whole set that `available` training tokens of one source allow."""
        return int(Fraction(max(0, available)) * self.passes / self.shares.fractions[source])

    def validation_fault(self, source: int, tokens: int, *, how_sure: str = "") -> str:
        """Return why a source with so many tokens cannot give its share of validation; empty if it can.

        Args:
            source: index of the source.
            tokens: all tokens of the source.
            how_sure: put before the number, such as "at most ".
        """
        asked = self.val_tokens(source)
        if asked < tokens:
            return ""
        return (
            f"split.val_tokens: {self.recipe.split.val_tokens:,} asks for {plural(asked, 'token')} of "
            f"{self.recipe.sources[source].name!r}, which has {how_sure}{tokens:,} in all; some must be left to train "
            f"on. Ask for less, or {self._remedy(source)}."
        )

    def _remedy(self, source: int) -> str:
        name = self.recipe.sources[source].name
        return f"add data (files, or a larger `take`), or leave it out: --set sources.{name}.weight=0"

    def small_phases(self, train_tokens: int) -> list[str]:
        """Return a fault for each phase whose share of the training tokens is smaller than a shard."""
        shard_tokens = self.recipe.shards.tokens
        return [
            f"mix.phases.{phase.name}: {phase.share} of {plural(train_tokens, 'training token')} is {tokens:,}, less "
            f"than a shard of {shard_tokens:,}, and a shard has one phase. Lower shards.tokens to at most "
            f"{max(1, tokens):,}, or give the phase a larger share."
            for phase, tokens in zip(self.recipe.mix.phases, self.phase_tokens(train_tokens), strict=False)
            if tokens < shard_tokens
        ]

    def grant(self, available: Sequence[float | None]) -> Grant:
        """Return the training tokens that the set gets of what is needed, and whether they make a shard of each phase.

        Args:
            available: for each source, the tokens left for training; None if it has more that was not read yet, so
                that it bounds nothing.
        """
        found = self._grant(available)
        return found if found.fault else replace(found, fault="\n".join(self.small_phases(found.train_tokens)))

    def _grant(self, available: Sequence[float | None]) -> Grant:
        mix = self.recipe.mix
        # A source that was not read to its end bounds nothing yet, and one without a share never does.
        shares = self.shares.fractions
        limits = {s: self.limit(s, own) for s, own in enumerate(available) if own is not None and shares[s]}
        scarcest = min(limits, key=lambda source: limits[source], default=None)
        if scarcest is None:
            return Grant(0 if mix.tokens == "max" else mix.tokens, None, None)
        most = limits[scarcest]
        if most <= 0:
            name = self.recipe.sources[scarcest].name
            remedy = f"Lower split.val_tokens, or {self._remedy(scarcest)}."
            return Grant(0, most, scarcest, f"source {name!r}: validation takes all of it. {remedy}")
        # What is asked if the sources allow it, else what they allow, else the fault.
        if mix.tokens != "max" and mix.tokens <= most:
            return Grant(mix.tokens, most, scarcest)
        if mix.tokens == "max" or mix.when_short == "shrink":
            return Grant(most, most, scarcest)
        # Every source that is too small is named, with what it would have to give.
        short = {s: available[s] or 0 for s, limit in limits.items() if limit < mix.tokens}
        return Grant(mix.tokens, most, scarcest, self._shortage(mix.tokens, most, short))

    def _shortage(self, wanted: int, most: int, short: dict[int, float]) -> str:
        """Return why the sources lack tokens for `wanted` training tokens; `short` holds those that are too small."""
        if not self.recipe.has_weights:
            found = f"mix.tokens: {wanted:,}; the sources have {plural(most, 'training token')} in all. "
            return f'{found}Ask for at most that, or set mix.when_short to "shrink".'
        remedies = [
            f"Ask for at most {plural(most, 'token')}",
            "give the scarce sources less weight or more data (files, or a larger `take`)",
        ]
        epochs = max(ceil(self.shares.fractions[s] * wanted / Fraction(tokens)) for s, tokens in short.items())
        if self.recipe.mix.when_short != "repeat":
            remedies.append('set mix.when_short to "repeat"')
        elif epochs <= MAX_EPOCHS:
            remedies.append(f"raise mix.max_epochs from {self.passes} to {epochs}")
        lines = [
            f"source {self.recipe.sources[s].name!r}: has {plural(int(tokens), 'token')} for training; its share of "
            f"{wanted:,} is {self.shares.of(s, wanted):,}"
            for s, tokens in short.items()
        ]
        remedy = f'{", ".join(remedies)}, or set mix.when_short to "shrink"'
        return "\n".join(
            [f"mix.tokens: the sources are too small in {plural(self.passes, 'epoch')}. {remedy}.", *lines]
        )


def fit_sizes(recipe: Recipe, whole: Any, given: set[str]) -> tuple[Recipe, str]:
    """Scale the validation split and the shards of a recipe that are too large for its training tokens, and no others.

    Validation becomes a twentieth, or the part that the recipe itself has if that is more; a shard, a sixteenth of the
    smallest phase.

    Args:
        recipe: the recipe with fewer training tokens than its file has.
        whole: `mix.tokens` of the file.
        given: dotted keys that a person gave by themselves. They stay.

    Returns:
        The recipe, and a text that says what was scaled; empty if nothing was.
    """
    tokens, most = recipe.mix.tokens, 1 << 62
    if tokens == "max":
        return recipe, ""
    with suppress(ValueError):
        before = parse_count(whole)
        most = before if isinstance(before, int) and before > 0 else most
    demand, val, shard = Demand(recipe), recipe.split.val_tokens, recipe.shards.tokens
    part, phase = max(Fraction(1, 20), Fraction(val, most)), min(demand.phase_tokens(tokens))
    scaled: list[str] = []
    for table, key, old, new, fits in (
        ("split", "val_tokens", val, int(part * tokens), val <= part * tokens),
        ("shards", "tokens", shard, max(1, phase // 16), shard <= phase or shard > min(demand.phase_tokens(most))),
    ):
        if not fits and not given & {table, f"{table}.{key}"}:
            recipe = recipe.with_values(**{table: getattr(recipe, table).with_values(**{key: new})})
            scaled.append(f"{table}.{key} {old:,} -> {new:,}")
    return recipe, ", ".join(scaled)


def _list_phases(recipe: Recipe, weights: tuple[float, ...]) -> tuple[Phase, ...]:
    if not recipe.mix.phases:
        return (Phase(None, Fraction(1), Shares(weights)),)
    own = {source.name: weight for source, weight in zip(recipe.sources, weights, strict=True)}
    return tuple(
        Phase(phase.name, Fraction(str(phase.share)), Shares(tuple({**own, **phase.weights}.values())))
        for phase in recipe.mix.phases
    )

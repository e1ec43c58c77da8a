"""The `clean` tables of a recipe: which presets and filters are on, with which limits; and near-duplicates."""

from __future__ import annotations

from operator import not_
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field

from pipeline.recipe.filters import DatatroveFilter, Filter, Language, PersonalData, distinct_filters
from pipeline.recipe.presets import C4, Code, Fineweb, Gopher, Limit, Preset
from shards.config import Settings


class CleanRecipe(Settings):
    """Presets and filters of a source."""

    gopher: Gopher | None = Field(default=None, exclude_if=not_)
    """Drops prose of low quality (Rae et al. 2021)."""
    c4: C4 | None = Field(default=None, exclude_if=not_)
    """Drops the pages that C4 drops whole (Raffel et al. 2020)."""
    fineweb: Fineweb | None = Field(default=None, exclude_if=not_)
    """Drops web pages by their lines (Penedo et al. 2024)."""
    code: Code | None = Field(default=None, exclude_if=not_)
    """Drops data, generated files and minified files among source code (Chen et al. 2021, Li et al. 2023)."""
    personal_data: PersonalData | None = Field(default=None, exclude_if=not_)
    """A filter: masks personal data and secrets, or drops documents that have them."""
    language: Language | None = Field(default=None, exclude_if=not_)
    """A filter: drops documents in other languages."""
    datatrove: Annotated[list[DatatroveFilter], AfterValidator(distinct_filters)] | None = Field(
        default=None, exclude_if=not_
    )
    """Filters of datatrove, in their order: `[[sources.clean.datatrove]]`. An empty list in a source turns the recipe's
    filters off."""

    def __bool__(self) -> bool:
        """Return whether a preset or a filter is on."""
        return any(table.is_on for table in self._tables())

    def presets(self, when: Literal["mix", "encode"] | None = None) -> list[Preset]:
        """Return the presets that are on, in order; if `when` is given, only those that drop documents then."""
        given = [table for table in self._tables() if isinstance(table, Preset) and table.is_on]
        return [preset for preset in given if when in (None, preset.when)]

    def filters(self) -> list[Filter]:
        """Return the filters that are on, in order."""
        return [table for table in self._tables() if isinstance(table, Filter) and table.is_on]

    def limits(self, when: Literal["mix", "encode"]) -> list[Limit]:
        """Return the limits that are applied at `when`, in order."""
        return [limit for preset in self.presets(when) for limit in preset.limits()]

    def mix_measures(self) -> list[str]:
        """Return the measures that are written with a run, by name, including those of limits that are off."""
        return sorted({name for preset in self.presets("mix") for name in preset.measures()})

    def mix_presets(self) -> CleanRecipe:
        """Return the presets with `when = "mix"` alone, with their limits."""
        own: dict[str, Any] = {preset.name: preset.with_limits_alone() for preset in self.presets("mix")}
        return CleanRecipe(**own)

    def for_sample(self, limits: CleanRecipe) -> Self:
        """Return the tables that clean the tokenizer's sample.

        Args:
            limits: the presets with `when = "mix"`, with the limits that the sample is drawn with.
        """
        moved = {preset.name: preset.model_copy(update={"when": "encode"}) for preset in limits.presets("mix")}
        return self.model_copy(update=moved)

    def with_defaults(self, others: CleanRecipe) -> Self:
        """Return the tables that are on; `others` fills in for tables that are missing here."""
        own: dict[str, Any] = {}
        # A source's own table replaces the recipe's, also to turn it off.
        for name in CleanRecipe.model_fields:
            table = getattr(others if getattr(self, name) is None else self, name)
            if table if isinstance(table, list) else table is not None and table.is_on:
                own[name] = table
        return type(self)(**own)

    def _tables(self) -> list[Preset | Filter]:
        """Return the tables that are given, in order."""
        found: list[Preset | Filter] = []
        for name in CleanRecipe.model_fields:
            given: Any = getattr(self, name)
            found += given if isinstance(given, list) else [given] if given is not None else []
        return found


class NearDuplicatesRecipe(Settings):
    """Documents of all sources that are nearly equal. The table turns the search on, even when it is empty. Two
    documents are compared by their sets of 5-grams of tokens: MinHash finds candidates, and the Jaccard similarity of
    each pair is then computed exactly. Turning the search on or changing a number encodes nothing again.
    """

    action: Literal["report", "drop"] = "report"
    """`report`: count near-duplicates and list the pairs. `drop`: of similar documents the longest stays, of equally
    long ones the one with the lowest hash. A document is dropped only if it is similar to one that stays."""
    min_jaccard: Annotated[float, Field(ge=0.5, le=1)] = 0.8
    """The lowest similarity at which two documents are near-duplicates. Of the pairs at 0.8, 92 % are found; at 0.85,
    98.8 %; at 0.7, 56 %. A lower number finds more pairs, and more that are not duplicates."""
    max_dropped: Annotated[float, Field(ge=0, le=1)] = 0.3
    """`drop`: the build stops and shows examples if a larger share of a source's documents would be dropped."""


class CleanAllRecipe(CleanRecipe):
    """Presets that drop whole documents. A table turns its preset on, even when it is empty; each limit in it replaces
    the published one, and `"off"` turns one limit off. A document's first reason is the first limit that it breaks, in
    the order of the presets and of their limits. Filters read documents before they are encoded.
    """

    near_duplicates: NearDuplicatesRecipe | None = Field(default=None, exclude_if=not_)
    """Documents that are nearly equal, within a source and across sources."""

    def __bool__(self) -> bool:
        """Return whether anything is on."""
        return super().__bool__() or self.near_duplicates is not None

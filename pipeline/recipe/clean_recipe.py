"""The `clean` tables of a recipe: which presets and filters are on, with which limits; and near-duplicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field

from pipeline.recipe.filters import FILTERS, DatatroveFilter, Filter, Language, PersonalData, distinct_filters
from pipeline.recipe.presets import C4, Code, Fineweb, Gopher, Limit, Preset
from shards.config import Settings


def _is_none(value: Any) -> bool:
    return value is None


class CleanRecipe(Settings):
    """Presets and filters of a source."""

    gopher: Gopher | None = Field(default=None, exclude_if=_is_none)
    """Quality of prose (Rae et al. 2021)."""
    c4: C4 | None = Field(default=None, exclude_if=_is_none)
    """Whole pages that C4 drops (Raffel et al. 2020)."""
    fineweb: Fineweb | None = Field(default=None, exclude_if=_is_none)
    """Lines of web pages (Penedo et al. 2024)."""
    code: Code | None = Field(default=None, exclude_if=_is_none)
    """Source code: data, generated and minified files (Chen et al. 2021, Li et al. 2023)."""
    personal_data: PersonalData | None = Field(default=None, exclude_if=_is_none)
    """A filter: personal data and secrets are masked, or their documents dropped."""
    language: Language | None = Field(default=None, exclude_if=_is_none)
    """A filter: documents in other languages are dropped."""
    datatrove: Annotated[list[DatatroveFilter], AfterValidator(distinct_filters)] | None = Field(
        default=None, exclude_if=_is_none
    )
    """Filters of datatrove, in their order: `[[sources.clean.datatrove]]`. An empty list in a source turns off those of
    the recipe."""

    def __bool__(self) -> bool:
        """Return whether a preset or a filter is on."""
        return any(table.is_on for table in self._tables())

    def presets(self, when: Literal["mix", "encode"] | None = None) -> list[Preset]:
        """Return the presets that are on, in order; those that drop documents at `when` alone if it is given."""
        given = [table for table in self._tables() if isinstance(table, Preset) and table.is_on]
        return [preset for preset in given if when in (None, preset.when)]

    def filters(self) -> list[Filter]:
        """Return the filters that are on, in order."""
        return [table for table in self._tables() if isinstance(table, Filter) and table.is_on]

    @property
    def is_slow(self) -> bool:
        """Whether a filter is on that takes longer than encoding."""
        return any(table.is_slow for table in self.filters())

    def without_filters(self) -> Self:
        """Return the presets alone, for documents that have been filtered."""
        return self.model_copy(update=dict.fromkeys(FILTERS))

    def with_model(self, change: Callable[[str], str]) -> Self:
        """Return the tables with another path of the language's model."""
        if self.language is None or self.language.model is None:
            return self
        table = self.language.model_copy(update={"model": change(self.language.model)})
        return self.model_copy(update={"language": table})

    def limits(self, when: Literal["mix", "encode"]) -> list[Limit]:
        """Return the limits that are applied at `when`, in order."""
        return [limit for preset in self.presets(when) for limit in preset.limits()]

    def mix_measures(self) -> list[str]:
        """Return the measures that are written beside a run, by name: those of the limits that are off, too."""
        return sorted({name for preset in self.presets("mix") for name in preset.measures()})

    def for_sample(self) -> Self:
        """Return what the tokenizer's sample is cleaned by: limits of `when = "mix"` as they were published.

        So the tokenizer stays when such a limit is moved or turned off.
        """
        moved = {
            preset.name: preset.published().model_copy(update={"when": "encode"}) for preset in self.presets("mix")
        }
        return self.model_copy(update=moved)

    def with_defaults(self, others: CleanRecipe) -> Self:
        """Return the tables that are on; those of `others` take the place of the ones without a table here."""
        own: dict[str, Any] = {}
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
    """Documents of all sources that are nearly equal. The table turns it on, even when it is empty. Two documents are
    compared by their sets of 5-grams of tokens: candidates are found by MinHash, and each one's Jaccard similarity is
    then computed exactly. Turning it on, or moving a number, encodes nothing again.
    """

    action: Literal["report", "drop"] = "report"
    """`report`: count them, and list the pairs. `drop`: of similar documents the longest stays, of equally long ones
    the one with the lowest hash; a document is dropped only if it is similar to one that stays."""
    min_jaccard: Annotated[float, Field(ge=0.5, le=1)] = 0.8
    """The least similarity at which two documents are near-duplicates. Of the pairs at 0.8, 92 % are found; at 0.85,
    98.8 %; at 0.7, 56 %. A lower number finds more, and more that are no duplicates."""
    max_dropped: Annotated[float, Field(ge=0, le=1)] = 0.3
    """`drop`: the build stops, and shows some of them, when a larger share of a source's documents would be dropped."""


class CleanAllRecipe(CleanRecipe):
    """Presets that drop whole documents. A table turns its preset on, even when it is empty; each limit in it replaces
    the published one, and `"off"` turns one limit off. The order of the presets and of their limits is the order in
    which a document's first reason is found. Filters read documents before they are encoded.
    """

    near_duplicates: NearDuplicatesRecipe | None = Field(default=None, exclude_if=_is_none)
    """Documents that are nearly equal, within a source and across sources."""

    def __bool__(self) -> bool:
        """Return whether anything is on."""
        return super().__bool__() or self.near_duplicates is not None

"""The `clean` tables of a recipe: which presets are on, and with which limits."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field

from pipeline.recipe.presets import Code, Gopher, Limit, Preset
from shards.config import Settings


def _is_none(value: Any) -> bool:
    return value is None


class CleanRecipe(Settings):
    """Presets that drop whole documents. A table turns its preset on, even when it is empty; each limit in it replaces
    the published one, and `"off"` turns one limit off. The order of the presets and of their limits is the order in
    which a document's first reason is looked for.
    """

    gopher: Gopher | None = Field(default=None, exclude_if=_is_none)
    """Quality of prose (Rae et al. 2021)."""
    code: Code | None = Field(default=None, exclude_if=_is_none)
    """Source code: data, generated and minified files (Chen et al. 2021, Li et al. 2023)."""

    def __bool__(self) -> bool:
        """Return whether a preset is on."""
        return bool(self.presets())

    def presets(self, when: Literal["mix", "encode"] | None = None) -> list[Preset]:
        """Return the presets that are on, in order; those that drop documents at `when` alone if it is given."""
        given = (getattr(self, name) for name in type(self).model_fields)
        return [preset for preset in given if preset is not None and preset.when in ((when,) if when else _ON)]

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
        return self._of(
            preset if preset.when == "encode" else preset.published().model_copy(update={"when": "encode"})
            for preset in self.presets()
        )

    def with_defaults(self, others: CleanRecipe) -> Self:
        """Return the presets that are on; those of `others` take the place of the ones without a table here."""
        own = {name: getattr(self, name) or getattr(others, name) for name in type(self).model_fields}
        return self._of(preset for preset in own.values() if preset is not None and preset.when in _ON)

    def _of(self, presets: Any) -> Self:
        return type(self)(**{preset.name: preset for preset in presets})


_ON = ("mix", "encode")

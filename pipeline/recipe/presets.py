"""Presets: limits on measures of documents, with the numbers of the papers they come from.

A field of a preset is a limit. Its name is `min_` or `max_` and a measure of `pipeline.clean.measures`; its default is
the published number. A document falls where its measure is below the minimum or above the maximum; on the limit it
stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from shards.config import Settings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

OFF = "off"
"""The value of a limit that is not applied. Its measure is taken all the same: turning it on encodes nothing again."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One number that a document's measure must keep to."""

    preset: str
    key: str
    """The key in the recipe, such as `min_words`."""
    measure: str
    side: Literal["min", "max"]
    value: float

    @property
    def reason(self) -> str:
        """The reason under which documents that fall are counted: `gopher: min_words`."""
        return f"{self.preset}: {self.key}"

    def find_fallen(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Return which documents fall, `(documents,)`, by their measures.

        The limit is rounded to float32 as the measures are: a document exactly on it stays.
        """
        return values < self.value if self.side == "min" else values > self.value


def _limit_between(least: float, most: float | None) -> Callable[[Any], Any]:
    expected = f'a number from {least:g} to {most:g}, or "off"' if most is not None else 'a number from 0, or "off"'

    def check(value: Any) -> Any:
        if value == OFF:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"expected {expected}")
        if not least <= value <= (float("inf") if most is None else most):  # also refuses NaN
            raise ValueError(f"expected {expected}")
        return float(value)

    return check


Share = Annotated[float | Literal["off"], BeforeValidator(_limit_between(0, 1))]
"""A limit on a share, from 0 to 1."""
Amount = Annotated[float | Literal["off"], BeforeValidator(_limit_between(0, None))]
"""A limit on a count, a length or a ratio, from 0."""


class Preset(Settings):
    """Base of the presets."""

    model_config = ConfigDict(validate_default=True)

    name: ClassVar[str]
    """The preset's name in a recipe."""

    when: Literal["mix", "encode", "off"] = "mix"
    """`mix`: measured when documents are encoded, and dropped when the set is mixed: moving a limit encodes nothing
    again. `encode`: dropped before encoding, for limits that drop most of a source. `off`: the preset is not used: for
    one source, where the recipe has it for all."""
    max_dropped: Annotated[float, Field(ge=0, le=1)] = 0.3
    """The build stops, and shows some of them, when the preset drops a larger share of the documents."""

    @model_validator(mode="after")
    def _check_sides(self) -> Self:
        least = {limit.measure: limit.value for limit in self.limits() if limit.side == "min"}
        for limit in self.limits():
            if limit.side == "max" and limit.value < least.get(limit.measure, 0):
                raise ValueError(f"min_{limit.measure} is above {limit.key}: every document would be dropped")
        return self

    @property
    def is_on(self) -> bool:
        """Whether the preset is used."""
        return self.when != "off"

    @classmethod
    def limit_keys(cls) -> list[str]:
        """Return the keys of the limits, in order: a document that several would drop is counted for the first."""
        return [key for key in cls.model_fields if key not in Preset.model_fields]

    @classmethod
    def measures(cls) -> list[str]:
        """Return the names of all measures that the preset takes, also of limits that are off, in order."""
        return list(dict.fromkeys(key[4:] for key in cls.limit_keys()))

    def limits(self) -> list[Limit]:
        """Return the limits that are not off, in order."""
        values = {key: getattr(self, key) for key in self.limit_keys()}
        return [
            Limit(self.name, key, key[4:], cast("Literal['min', 'max']", key[:3]), value)
            for key, value in values.items()
            if value != OFF
        ]

    def published(self) -> Self:
        """Return the preset with its published limits."""
        return type(self)(when=self.when, max_dropped=self.max_dropped)


class Gopher(Preset):
    """The rules for quality and repetition of MassiveText (Rae et al. 2021, appendix A.1)."""

    name = "gopher"

    min_words: Amount = 50
    """Words: Rae et al. drop documents of fewer than 50."""
    max_words: Amount = 100_000
    """Words: Rae et al. drop documents of more than 100,000."""
    min_mean_word_chars: Amount = 3
    """Mean length of the words in characters: from 3 ..."""
    max_mean_word_chars: Amount = 10
    """... to 10."""


class Code(Preset):
    """The filters for code of Codex (Chen et al. 2021), StarCoder (Li et al. 2023) and The Stack v2."""

    name = "code"

    max_mean_line_bytes: Amount = 100
    """Mean length of a line in bytes: 100 (Chen et al. 2021, section 3.1; Li et al. 2023)."""
    max_longest_line_bytes: Amount = 1000
    """Longest line in bytes: 1,000 (Chen et al. 2021, section 3.1; Li et al. 2023)."""
    min_alphanumeric: Share = 0.25
    """Share of the characters that are letters and digits: 0.25 (Li et al. 2023)."""


PRESETS: dict[str, type[Preset]] = {preset.name: preset for preset in (Gopher, Code)}
"""Name -> model of every preset."""

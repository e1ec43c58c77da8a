"""Presets: limits on measures of documents, with the numbers of the papers they come from.

A field of a preset is a limit. Its name is `min_` or `max_` and a measure of `pipeline.clean.measures`; its default is
the published number. A document is dropped if its measure is below the minimum or above the maximum; one on the limit
stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeFloat, model_validator

from pipeline.recipe.key_values import Proportion
from shards.config import Settings

if TYPE_CHECKING:
    from shards.format.arrays import Bools, Float32s

OFF = "off"
"""The value of a limit that is not applied. The measure is still taken, so turning the limit on encodes nothing
again."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A lower or upper bound on one measure of a document."""

    preset: str
    key: str
    """The key in the recipe, such as `min_words`."""
    value: float

    @property
    def measure(self) -> str:
        """The measure that a preset's limit bounds."""
        return self.key[4:]

    @property
    def is_lower(self) -> bool:
        """Whether a preset's limit is the least value of its measure, else the greatest."""
        return self.key.startswith("min_")

    @property
    def reason(self) -> str:
        """The reason under which documents that a preset's limit drops are counted: `gopher: min_words`."""
        return f"{self.preset}: {self.key}"

    def is_violated(self, values: Float32s) -> Bools:
        """Return which documents the limit drops, `(documents,)`, by their measures.

        The limit is rounded to float32, like the measures, so a document exactly on it stays.
        """
        return values < self.value if self.is_lower else values > self.value


Share = Proportion | Literal["off"]
"""A limit on a share, from 0 to 1."""
Amount = NonNegativeFloat | Literal["off"]
"""A limit on a count, a length or a ratio, from 0."""


class CleanTable(Settings):
    """Base of the presets and the filters."""

    name: ClassVar[str]
    """The table's name in `clean`."""

    enabled: bool = Field(default=True, exclude_if=bool)
    """`false` turns the table off, also for one source."""

    @property
    def label(self) -> str:
        """The name of a preset or a filter in messages: `clean.LABEL`."""
        return self.name

    @property
    def step(self) -> str:
        """The name under which what a preset or a filter drops is counted, with which its reasons begin."""
        return self.name.replace("_", " ")

    @property
    def table(self) -> str:
        """The table of a preset or a filter in a recipe; a source's own table replaces the recipe's."""
        return f"[sources.clean.{self.name}] or [clean.{self.name}]"

    def in_digest(self) -> dict[str, Any]:
        """Return what decides the result of a preset or a filter beside code: every key but `max_dropped`.

        A table whose values can be written in several ways replaces these, and leaves no key out.
        """
        return self.model_dump(mode="json", exclude={"max_dropped"})


class Preset(CleanTable):
    """Base of the presets."""

    model_config = ConfigDict(validate_default=True)

    when: Literal["mix", "encode"] = "mix"
    """`mix`: documents are dropped when the set is mixed, so changing a limit re-encodes nothing. `encode`: before
    encoding; for limits that drop most of a source."""
    max_dropped: Proportion = 0.3
    """The build stops and shows examples if the preset drops a larger share of a source's documents."""

    @model_validator(mode="after")
    def _check_sides(self) -> Self:
        if not self.enabled:  # its limits are kept for the day that it is turned on again
            return self
        # A minimum above the maximum of one measure drops every document.
        least = {limit.measure: limit.value for limit in self.limits() if limit.is_lower}
        for limit in self.limits():
            if not limit.is_lower and limit.value < least.get(limit.measure, 0):
                raise ValueError(f"min_{limit.measure} is above {limit.key}: every document would be dropped")
        return self

    @classmethod
    def limit_keys(cls) -> list[str]:
        """Return the keys of a preset's limits, in order: a document counts under the first that it breaks."""
        return [key for key in cls.model_fields if key not in Preset.model_fields]

    @classmethod
    def measures(cls) -> list[str]:
        """Return the names of all measures that the preset takes, in order, including those of limits that are off."""
        return list(dict.fromkeys(key[4:] for key in cls.limit_keys()))

    def limits(self) -> list[Limit]:
        """Return the preset's limits that are not off, in order."""
        values = {key: getattr(self, key) for key in self.limit_keys()}
        return [Limit(self.name, key, value) for key, value in values.items() if value != OFF]


class Gopher(Preset):
    """For English prose: the limits of MassiveText (Rae et al. 2021, appendix A.1.1 and table A1)."""

    name = "gopher"

    min_words: Amount = 50
    """Number of words."""
    max_words: Amount = 100_000
    """Number of words."""
    min_mean_word_chars: Amount = 3
    """Mean length of the words, in characters."""
    max_mean_word_chars: Amount = 10
    """Mean length of the words, in characters."""
    max_hashes_per_word: Amount = 0.1
    """Number signs per word."""
    max_ellipses_per_word: Amount = 0.1
    """Ellipses per word."""
    max_bullet_lines: Share = 0.9
    """Lines that begin with a bullet."""
    max_ellipsis_lines: Share = 0.3
    """Lines that end with an ellipsis."""
    min_alphabetic_words: Share = 0.8
    """Words with a letter."""
    min_stop_words: Amount = 2
    """How many of eight English stop words occur."""
    max_duplicate_lines: Share = 0.3
    """Lines that occur before."""
    max_duplicate_paragraphs: Share = 0.3
    """Paragraphs that occur before."""
    max_duplicate_line_chars: Share = 0.2
    """Characters in lines that occur before."""
    max_duplicate_paragraph_chars: Share = 0.2
    """Characters in paragraphs that occur before."""
    max_top_2gram_chars: Share = 0.2
    """Characters in the most frequent 2-gram of words."""
    max_top_3gram_chars: Share = 0.18
    """Characters in the most frequent 3-gram of words."""
    max_top_4gram_chars: Share = 0.16
    """Characters in the most frequent 4-gram of words."""
    max_duplicate_5gram_chars: Share = 0.15
    """Characters in 5-grams that occur before."""
    max_duplicate_6gram_chars: Share = 0.14
    """Characters in 6-grams that occur before."""
    max_duplicate_7gram_chars: Share = 0.13
    """Characters in 7-grams that occur before."""
    max_duplicate_8gram_chars: Share = 0.12
    """Characters in 8-grams that occur before."""
    max_duplicate_9gram_chars: Share = 0.11
    """Characters in 9-grams that occur before."""
    max_duplicate_10gram_chars: Share = 0.1
    """Characters in 10-grams that occur before."""


class C4(Preset):
    """For prose: the rules of C4 that drop whole pages (Raffel et al. 2020, section 2.2, and its code
    `c4_utils.py`)."""

    name = "c4"

    min_sentences: Amount = 3
    """Sentences in the lines that C4 would keep."""
    max_lorem_ipsum: Amount = 0
    """How often lorem ipsum occurs."""
    max_curly_brackets: Amount = 0
    """How often { occurs."""
    max_longest_word_chars: Amount = 1000
    """Longest word, in characters."""


class Fineweb(Preset):
    """For web pages: the rules that FineWeb adds to those of Gopher and C4 (Penedo et al. 2024, section 3.6)."""

    name = "fineweb"

    min_punctuated_lines: Share = 0.12
    """Lines that end with punctuation."""
    max_duplicate_line_chars: Share = 0.1
    """Characters in lines that occur before. datatrove's default is 0.01."""
    max_short_lines: Share = 0.67
    """Lines of fewer than 30 characters."""
    max_newlines_per_word: Amount = 0.3
    """Line feeds per word (datatrove's `new_line_ratio`)."""


class Code(Preset):
    """For program text: the limits of Codex (Chen et al. 2021), StarCoder (Li et al. 2023) and The Stack v2 (Lozhkov et
    al. 2024)."""

    name = "code"

    max_mean_line_bytes: Amount = 100
    """Mean length of all lines (Codex; StarCoder: characters)."""
    max_longest_line_bytes: Amount = 1000
    """Longest line (Codex; StarCoder: characters)."""
    min_alphanumeric: Share = 0.25
    """Characters that are letters and digits (StarCoder)."""
    max_generated_marks: Amount = 0
    """Marks of a generated file in the first lines (Codex, The Stack v2)."""
    max_longest_encoded_run: Amount = 1024
    """Longest run of base64 or hex, in bytes (The Stack v2)."""
    max_encoded: Share = 0.5
    """Bytes in runs of base64 or hex (The Stack v2)."""
    min_code_letters: Share = 0.05
    """Characters that are letters outside strings and numbers. Our number: tables and word lists have 0 to 2%."""

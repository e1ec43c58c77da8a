"""Steps of cleaning that read each text before it is encoded: personal data, language, datatrove's filters."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field

from pipeline.recipe.values import distinct
from shards.config import Settings

PersonalKind = Literal[
    "private_key",
    "aws_key",
    "github_token",
    "gitlab_token",
    "google_key",
    "huggingface_token",
    "openai_key",
    "anthropic_key",
    "slack_token",
    "stripe_key",
    "npm_token",
    "pypi_token",
    "card_number",
    "email",
    "ipv4",
    "ipv6",
]
PERSONAL_KINDS: tuple[PersonalKind, ...] = get_args(PersonalKind)


class Filter(Settings):
    """Base of the filters."""

    name: ClassVar[str]
    """The filter's table in `clean`."""
    when: ClassVar[str] = "encode"

    max_dropped: Annotated[float, Field(ge=0, le=1)] = 0.3
    """The build stops, and shows some of them, when the filter drops a larger share of the documents."""

    @property
    def is_on(self) -> bool:
        """Whether the filter is used."""
        return True

    @classmethod
    def ordered_keys(cls) -> list[str]:
        """Return the keys of the table: its own, then those of every filter."""
        return sorted(cls.model_fields, key=lambda key: key in Filter.model_fields)


class PersonalData(Filter):
    """Personal data and secrets: e-mail addresses, public addresses of the internet, keys, card numbers."""

    name = "personal_data"

    action: Literal["keep", "mask", "drop"] = "mask"
    """`mask` replaces each hit with a placeholder, such as `email@example.com`; `drop` drops the document; `keep` does
    not look for any, for one source where the recipe has the table for all."""
    kinds: Annotated[list[PersonalKind], AfterValidator(distinct), Field(min_length=1)] | None = None
    """What to look for, all when absent; [docs/cleaning.md](../docs/cleaning.md) says what counts as each."""

    @property
    def is_on(self) -> bool:
        """Whether personal data is looked for."""
        return self.action != "keep"

    @property
    def all_kinds(self) -> tuple[PersonalKind, ...]:
        """What is looked for, in one order whatever the order in the recipe."""
        return tuple(kind for kind in PERSONAL_KINDS if self.kinds is None or kind in self.kinds)


FILTERS: dict[str, type[Filter]] = {filter_.name: filter_ for filter_ in (PersonalData,)}
"""Table in `clean` -> model of every filter."""

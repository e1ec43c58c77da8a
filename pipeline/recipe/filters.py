"""Steps of cleaning that read each text before it is encoded: personal data, language, datatrove's filters."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, Field, JsonValue, model_validator

from pipeline.recipe.key_values import SizeBytes, distinct
from pipeline.recipe.paths import DIGEST_MARK, RecipePath
from pipeline.recipe.presets import CleanTable

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
    "discord_webhook",
    "stripe_key",
    "npm_token",
    "pypi_token",
    "email",
    "ipv4",
    "ipv6",
]
PERSONAL_KINDS: tuple[PersonalKind, ...] = get_args(PersonalKind)


class Filter(CleanTable):
    """Base of the filters."""

    when: ClassVar[str] = "encode"

    max_dropped: Annotated[float, Field(ge=0, le=1)] = 0.3
    """The build stops and shows examples if the filter drops a larger share of the documents that come to it."""

    @property
    def is_on(self) -> bool:
        """Whether the filter is used."""
        return True

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the keys of the table: its own keys, then the keys that all filters have."""
        return sorted(cls.model_fields, key=lambda key: key in Filter.model_fields)


class PersonalData(Filter):
    """Personal data and secrets: e-mail addresses, public addresses of the internet, keys and tokens."""

    name = "personal_data"

    action: Literal["keep", "mask", "drop"] = "mask"
    """`mask` replaces each hit with a placeholder, such as `email@example.com`; `drop` drops the document; `keep` does
    not look for any: it turns the recipe's table off for one source."""
    kinds: Annotated[list[PersonalKind], AfterValidator(distinct), Field(min_length=1)] | None = None
    """What to look for; when absent, everything. [docs/cleaning.md](../docs/cleaning.md) says what counts as each
    kind."""

    @property
    def is_on(self) -> bool:
        """Whether personal data is looked for."""
        return self.action != "keep"

    @property
    def all_kinds(self) -> tuple[PersonalKind, ...]:
        """The kinds to look for, always in the same order, whatever their order in the recipe."""
        return tuple(kind for kind in PERSONAL_KINDS if self.kinds is None or kind in self.kinds)


class Language(Filter):
    """The language of a document, as a fastText model sees it (the extra `clean`). Documents in other languages are
    dropped and counted by language.
    """

    name = "language"

    model: RecipePath | None = None
    """The model's file, such as fastText's `lid.176.ftz`, relative to the recipe's folder. The set's `recipe.json` adds
    its SHA-256. Required unless `keep` is `"all"`."""
    keep: Annotated[list[str], AfterValidator(distinct), Field(min_length=1)] | Literal["all"]
    """Languages to keep, by the model's labels: `["en"]`. `"all"` turns the table off for a source."""
    min_score: Annotated[float, Field(ge=0, le=1)] = 0.65
    """A document stays if one of these languages scores this much or more; 0.65 is FineWeb's number."""
    first_bytes: SizeBytes | None = None
    """How much of each document to look at: less is faster. When absent, all of it."""

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if self.is_on and self.model is None:
            raise ValueError("model: required key is missing: the file of a fastText model")
        return self

    @property
    def is_on(self) -> bool:
        """Whether documents are dropped."""
        return self.keep != "all"

    @property
    def file(self) -> str:
        """The model's file, without its SHA-256."""
        return (self.model or "").partition(DIGEST_MARK)[0]

    @property
    def sha256(self) -> str:
        """The SHA-256 of the model's file; empty if it is not known yet."""
        return (self.model or "").partition(DIGEST_MARK)[2]


class DatatroveFilter(Filter):
    """One of the filters of `datatrove.pipeline.filters`, unchanged and at its own speed (the extra `datatrove`). A
    document that it rejects is dropped and counted as `NAME: REASON`. If the filter changes a text, the original is
    encoded.
    """

    name = "datatrove"

    filter: Annotated[str, Field(min_length=1)]
    """The name of its class, such as `GopherQualityFilter`. Filters are refused if they need the network, need other
    columns than the text, or remember earlier documents."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments for its class: `{ min_doc_words = 20 }`."""

    @property
    def label(self) -> str:
        """The name of the filter in messages."""
        return f"{self.name}.{self.filter}"

    @property
    def step(self) -> str:
        """The name of its class, as datatrove counts."""
        return self.filter

    @property
    def table(self) -> str:
        """One of a list."""
        return "[[sources.clean.datatrove]] or [[clean.datatrove]]"


def distinct_filters(filters: list[DatatroveFilter]) -> list[DatatroveFilter]:
    """Return the filters of a recipe, or refuse a list that has one twice."""
    distinct([item.filter for item in filters])
    return filters

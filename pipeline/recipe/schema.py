"""The data recipe: what to build, as frozen models. No code, nothing about where or how fast.

The keys' types, bounds, defaults, meanings and the rules between them have their home here, and
`pipeline.builder.checked_recipe` reads files. Nothing here opens the files that a recipe names.
"""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from operator import not_
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    SerializeAsAny,
    ValidationInfo,
    model_validator,
)
from pydantic_core import from_json, to_json

from pipeline.recipe.chat import ChatRecipe
from pipeline.recipe.clean_recipe import CleanAllRecipe, CleanRecipe
from pipeline.recipe.key_values import (
    Column,
    Count,
    Delimiter,
    Entries,
    FormatName,
    IfGiven,
    Name,
    Patterns,
    Proportion,
    Quote,
    SizeBytes,
    SomeTokens,
    SourceWeight,
    Token,
    distinct,
)
from pipeline.recipe.paths import AS_WRITTEN, RecipeGlob, RecipePath
from pipeline.recipe.sources import SourceRecipe
from shards.config import Seed, Settings, Share, Text, are_named, item_names, list_of, shared_names, table_of
from shards.errors import plural
from shards.eval_tasks.known import KNOWN_TASKS
from shards.terminal.hints import nearest

DEFAULT_EOS_TOKEN = "<|endoftext|>"
BOS_TEXTS = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]")
"""The name of BOS in common tokenizers: Llama 2, Gemma, Llama 3, others."""
NUM_BYTES = 256
"""Entries that a byte-level vocabulary always has."""


MAX_UNKNOWN = 0.001
"""Unknown tokens of a source that a build allows: one in a thousand."""


class TokenizerRecipe(Settings):
    """The tokenizer, trained on a sample of the sources or given as a file."""

    vocab_size: Annotated[int, Count, Entries, Field(ge=1, le=1 << 24)] | None = None
    """Number of entries, including the 256 bytes and the special tokens. A token takes 2 bytes up to 65,536 entries,
    then 4. Required without `file`."""
    special_tokens: Annotated[list[Token], AfterValidator(distinct)] = Field(
        default_factory=lambda: [DEFAULT_EOS_TOKEN]
    )
    """They have the first ids, and match nothing in documents."""
    eos_token: str = DEFAULT_EOS_TOKEN
    """The special token that ends each document."""
    bos: bool | str = False
    """The special token that begins each document. `true` takes the one of a tokenizer `file`, or a usual name (`<s>`,
    `<bos>`, ...); `false`: none."""
    pretokenizer: Literal["gpt2", "llama3", "qwen2", "o200k"] = "gpt2"
    """How text is split before merges are learned."""
    id_order: Literal["frequency", "merge"] = "frequency"
    """The order of the ids after the special tokens. `frequency`: frequent entries have small bytes, which makes shards
    smaller. `merge`: the 256 bytes, then the entries in the order in which they were learned."""
    file: RecipePath | None = None
    """A `tokenizer.json` to use instead of training one: [which ones](tokenizers.md). Only `eos_token`, `bos` and
    `max_unknown` may be given with it."""
    max_unknown: Proportion = MAX_UNKNOWN
    """The build stops if a larger share of a source's tokens is unknown to the tokenizer `file`."""
    sample_bytes: SizeBytes = 10**9
    """How much text to train on, in the proportions of the mix. Documents over 1 MiB, or with over 16 KB without
    spaces, are taken in part."""
    sample_weights: dict[str, SourceWeight] | None = None
    """Shares of the sources in that sample; when absent, the mix's weights."""
    sample_limits: dict[str, CleanRecipe] | None = None
    """Limits with which that sample is drawn, by source: tables like its `clean`, of presets with `when = "mix"`; when
    absent, the recipe's limits. The tokenizer is kept when limits move later."""

    def rules(self) -> Iterator[str]:
        """Yield the faults between the keys of `[tokenizer]`."""
        # A file decides almost everything; a trained tokenizer must have room for what it always holds.
        if self.file is not None:
            why = "the tokenizer `file` decides it, so the key has no effect. Leave it out "
            why += "(on the command line: --set 'tokenizer={file = \"...\"}')"
            yield from self.refuse(_KEYS_OF_TRAINING, why)
            return
        why = "a trained tokenizer knows every character. Leave it out, or give a tokenizer `file`."
        yield from self.refuse(("max_unknown",), why)
        specials = self.special_tokens
        for key, token in (("eos_token", self.eos_token), ("bos", self.bos)):
            if isinstance(token, str) and token not in specials:
                yield f"{key}: {token!r} is not among special_tokens {specials}"
        # Known before training, as it would be of the trained tokenizer.
        if self.bos is True and sum(token in BOS_TEXTS for token in specials) != 1:
            found = f"which of special_tokens {specials} begins documents is not clear"
            yield f"bos: {found}. Give one of them as `bos`."
        elif self.bos == self.eos_token:
            yield f"bos: {self.bos!r} ends documents already. Give another one, or leave `bos` out."
        least = NUM_BYTES + len(specials)
        if self.vocab_size is None:
            yield "vocab_size: required key is missing. Give it, or a tokenizer `file`."
        elif self.vocab_size < least:
            yield (
                f"vocab_size: {self.vocab_size} is too small; {NUM_BYTES} bytes and "
                f"{plural(len(specials), 'special token')} need at least {least}"
            )


_KEYS_OF_TRAINING = (
    "vocab_size",
    "special_tokens",
    "pretokenizer",
    "id_order",
    "sample_bytes",
    "sample_weights",
    "sample_limits",
)

MAX_EPOCHS = 1000
MOST_SUM_PER_WEIGHT = 1_000_000_000
"""The weight of a source must be at least one in so many of the sum of all weights."""


class PhaseRecipe(Settings):
    """One phase of a curriculum: a part of the training tokens with its weights."""

    name: Name
    """The phase's name; distinct."""
    share: Share
    """The phase's part of `mix.tokens`, at least one shard. The shares of all phases add up to exactly 1."""
    weights: dict[str, NonNegativeFloat] = {}
    """Weights of sources in this phase: `{ web = 6, math = 4 }`. Other sources keep their `weight`; 0 leaves one
    out."""


class MixRecipe(Settings):
    """How many training tokens, in which phases, and what happens when a source has too few."""

    tokens: Annotated[int, Count, Field(gt=0, lt=1 << 63)] | Literal["max"] = "max"
    """Tokens of the training split; `"max"`: as many as the sources allow. With a number, the build reads only as much
    of a large source as it needs."""
    when_short: Literal["error", "shrink", "repeat"] = "error"
    """If a source is too small: stop, build a smaller set, or repeat the source."""
    max_epochs: Annotated[int, Field(ge=1, le=MAX_EPOCHS)] = 4
    """How often `repeat` may use a document. Up to 4 times does little harm (Muennighoff et al. 2023)."""
    phases: list[PhaseRecipe] = []
    """One table per phase, in the order of training."""

    def rules(self) -> Iterator[str]:
        """Yield the faults between the phases."""
        for name, count in shared_names(self.phases):
            yield f"phases: {count} phases are called {name!r}; expected distinct names"
        shares = [Decimal(str(phase.share)) for phase in self.phases]
        if all(phase.share > 0 for phase in self.phases) and shares and sum(shares) != 1:
            listed = " + ".join(map(str, shares))
            yield f"phases: the shares add up to {listed} = {sum(shares)}; expected exactly 1. Change one of them."


class SplitRecipe(Settings):
    """The held-out split, chosen by content hash in the mix's proportions."""

    val_tokens: Annotated[NonNegativeInt, Count] = 0
    """Tokens held out for validation."""


class ShardsRecipe(Settings):
    """The size and compression of a shard."""

    tokens: SomeTokens = 100_000_000
    """The most tokens in a shard, give or take a document."""
    zstd_level: Annotated[int, Field(ge=1, le=19)] | None = None
    """The level of Zstandard. None: parameters that fit tokens, at most 1% larger than level 3."""


class EvaluationRecipe(Settings):
    """Test items that documents of the set must not contain."""

    name: Name
    """The evaluation set's name; distinct."""
    paths: list[RecipeGlob] = []
    """Globs over its files, relative to the recipe's folder; required without `task`."""
    task: str | None = None
    """A known [eval task](experiments.md#eval-tasks) instead of files, such as `arc_easy`: each question with its right
    answer, from the Hub."""
    format: FormatName = "auto"
    """As for sources."""
    text: Column = "text"
    """Column of the items' text, such as `question`."""
    separator: Text | None = None
    """The text between two items of a text file."""
    delimiter: Delimiter | None = None
    """As for sources."""
    quote: Quote | None = None
    """As for sources."""
    max_dropped: Proportion = 0.01
    """The build stops if `drop` would drop a larger share of a source: a wrong column matches everywhere."""
    action: Literal["report", "drop"] = "report"
    """`report` counts and shows the documents that contain an item; `drop` also drops them. Changing this re-encodes
    nothing."""

    def rules(self) -> Iterator[str]:
        """Yield the faults between the keys of a test set: its items are in files, or those of a known eval task."""
        if isinstance(self.task, str):
            if self.task not in KNOWN_TASKS:
                yield f"task = {self.task!r}: no such eval task.{nearest(self.task, list(KNOWN_TASKS))}"
            if self.paths:
                yield "task: the items of an eval task come from the Hub. Leave `task` or `paths` out."
            why = "not used: it says how files are read. Leave it or `task` out."
            yield from self.refuse(("format", "text", "separator", "delimiter", "quote"), why)
        elif not self.paths and self.task is None:
            yield "paths: expected at least one glob. Give it, or task."


class Recipe(Settings):
    """A whole data recipe."""

    name: Name
    """The set's name: letters, digits, `.`, `_`, `-`."""
    seed: Seed = 1337
    """Decides the order of documents inside shards, and which parts of a source a small set and the tokenizer's sample
    take."""
    drop_hashes: Annotated[list[RecipePath], AfterValidator(distinct)] = []
    """Block lists: files of content hashes as `tokenmill trace --out` writes them, relative to the recipe's folder.
    Their documents are dropped from all sources when the set is mixed."""
    drop_if_matches: Patterns = []
    """Regular expressions of RE2. A document in which one matches anywhere is dropped before encoding, from any
    source."""
    sources: Annotated[list[SerializeAsAny[SourceRecipe]], Field(min_length=1)]
    """If two sources have the same document, the first one keeps it."""
    tokenizer: TokenizerRecipe
    chat: IfGiven[ChatRecipe] = None
    """Required with sources that have `messages`."""
    mix: MixRecipe = Field(default_factory=MixRecipe)
    split: SplitRecipe = Field(default_factory=SplitRecipe)
    shards: ShardsRecipe = Field(default_factory=ShardsRecipe)
    clean: CleanAllRecipe = Field(default_factory=CleanAllRecipe, exclude_if=not_)
    """A table applies to all sources without a table for the same preset or filter."""
    evaluations: list[EvaluationRecipe] = []
    """Changing the files encodes all sources again."""
    _folder: Path = Path()
    _given: list[tuple[str, CleanRecipe]] | None = None

    @model_validator(mode="after")
    def _give_to_sources(self, info: ValidationInfo) -> Self:
        """Copy the recipe's patterns and presets into each source. From here on, a source alone decides what is read
        from it."""
        self._folder, self._given = info.context or Path(), self.clean_tables
        for index, source in enumerate(self.sources):
            # The recipe's patterns come first, so that the first reason of a drop does not depend on the source.
            patterns = list(dict.fromkeys([*self.drop_if_matches, *source.drop_if_matches]))
            clean = source.clean.with_defaults(self.clean)
            self.sources[index] = source.with_values(drop_if_matches=patterns, clean=clean)
        if self.chat is not None and self.tokenizer.file is None:
            specials = list(dict.fromkeys([*self.tokenizer.special_tokens, *self.chat.name_tokens()]))
            object.__setattr__(self, "tokenizer", self.tokenizer.with_values(special_tokens=specials))
        near = self.clean.near_duplicates
        # In place, although it is frozen: `Recipe(...)` ignores a copy that its validator returns.
        object.__setattr__(self, "drop_if_matches", [])
        object.__setattr__(self, "clean", CleanAllRecipe(near_duplicates=near if near and near.enabled else None))
        return self

    def rules(self) -> Iterator[str]:
        """Yield the faults between the tables of the recipe."""
        listed: dict[str, Sequence[Settings]] = {"sources": self.sources, "evaluations": self.evaluations}
        for key, tables in listed.items():
            for name, count in shared_names(tables):
                yield f"{key}: {count} {key} are called {name!r}; expected distinct names"
        conversations = [source.name for source in self.sources if source.has_conversations]
        if conversations and self.chat is None:
            yield (
                f"chat: missing, and {conversations[0]!r} has conversations. Say how they are written, such as "
                '[chat] with format = "chatml".'
            )
        elif self.chat is not None and not conversations:
            yield "chat: no source has `messages`. Leave the table out, or name the column of conversations."
        chat, special = self.chat, list_of(self.tokenizer.special_tokens)
        if isinstance(chat, ChatRecipe) and chat.has_texts and self.tokenizer.file is None:
            ends = [token for token in (self.tokenizer.eos_token, self.tokenizer.bos) if isinstance(token, str)]
            yield from chat.check_tokens([*map(str, special), *chat.name_tokens()], ends)
        weights, names = self.tokenizer.sample_weights, self.source_names
        has_names = are_named(self.sources)
        if has_names and isinstance(weights, dict) and set(weights) != set(names):
            yield f"tokenizer.sample_weights: expected one weight for each of {sorted(names)}, got {sorted(weights)}"
        for name, limits in table_of(self.tokenizer.sample_limits).items() if has_names else ():
            mixed = self._list_mixed(name)
            for key in sorted(limits.model_fields_set) if isinstance(limits, CleanRecipe) else ():
                if key not in mixed or getattr(limits, key).when != "mix":
                    expected = ", ".join(mixed) or "none"
                    yield (
                        f"tokenizer.sample_limits.{name}.{key}: expected a table of a preset that the source has on, "
                        f'both with when = "mix": {expected}'
                    )
        yield from self._check_weights()

    def _list_mixed(self, source: str) -> list[str]:
        """Return the presets with `when = "mix"` that a source has on, by its table or else by the recipe's."""
        given = [one.clean.with_defaults(self.clean) for one in self.sources if one.name == source]
        return [preset.name for clean in given for preset in clean.presets("mix")]

    def _check_weights(self) -> Iterator[str]:
        """Yield the sources whose weight leaves them next to nothing of the mix, or of a phase."""
        given = {source.name: source.weight for source in self.sources if are_named([source])}
        if self.has_weights and (without := [name for name, weight in given.items() if weight is None]):
            yield (
                f"sources: some have a weight, and not {', '.join(map(repr, without))}. Give every source a weight, or "
                "none: then all text is in the set once."
            )
        why = "needs weights: without them, all text is in the set once. Leave it out, or give every source a weight"
        for key, table in (("mix.phases", self.mix.phases), ("mix.when_short", self.mix.when_short == "repeat")):
            if table and not self.has_weights and given:
                yield f"{key}: {why}."
        own = {name: 1 if weight is None else weight for name, weight in given.items()}
        exact = {name: Fraction(str(weight)) for name, weight in own.items() if weight > 0}
        total = sum(exact.values())
        for name, weight in exact.items():
            if weight * MOST_SUM_PER_WEIGHT < total:
                yield (
                    f"sources.{name}.weight: {own[name]} is less than one in {MOST_SUM_PER_WEIGHT:,} of the sum of the "
                    "weights. Give it more, or leave the source out."
                )
        sample = self.tokenizer.sample_weights if isinstance(self.tokenizer.sample_weights, dict) else own
        weighed = {
            "tokenizer.sample_weights": {} if self.tokenizer.file else sample,
            "sources": {} if self.mix.phases else own,
        }
        for called, phase in zip(item_names(self.mix.phases), self.mix.phases, strict=True):
            place = f"mix.phases.{called}.weights"
            if are_named(self.sources) and (unknown := sorted(phase.weights.keys() - own.keys())):
                yield f"{place}: no source has the name {', '.join(map(repr, unknown))}; expected some of {[*own]}"
            # A source that a phase does not name keeps its own weight.
            weighed[place] = {name: phase.weights.get(name, weight) for name, weight in own.items()}
        for place, weights in weighed.items():
            if weights and not any(weights.values()):
                yield f"{place}: every source has the weight 0. Give one of them more."

    @property
    def source_names(self) -> list[str]:
        """The names of the data recipe's sources, in order."""
        return [source.name for source in self.sources]

    @property
    def has_weights(self) -> bool:
        """Whether the recipe gives weights to its sources, by themselves or in phases; 0 alone leaves a source out."""
        return any(source.weight for source in self.sources) or all(source.weight == 0 for source in self.sources)

    def sample_limits(self) -> dict[str, CleanRecipe]:
        """Return the data recipe's limits for the tokenizer's sample, by source, of presets with `when = "mix"`."""
        given = self.tokenizer.sample_limits or {}
        return {
            source.name: given.get(source.name, CleanRecipe()).with_defaults(source.clean.mix_presets())
            for source in self.sources
            if source.clean.presets("mix")
        }

    @property
    def needs_fetch(self) -> bool:
        """Whether the text of a source is in Software Heritage's archive."""
        return any(source.content != "column" for source in self.sources)

    @property
    def folder(self) -> Path:
        """The folder that the data recipe, as a model, keeps of its file, where its relative paths begin."""
        return self._folder

    @property
    def clean_tables(self) -> list[tuple[str, CleanRecipe]]:
        """The `clean` tables of the data recipe and of its sources with their places, as they were given."""
        sources = zip(item_names(self.sources), self.sources, strict=True)
        tables = [("clean", self.clean), *((f"sources.{name}.clean", source.clean) for name, source in sources)]
        return self._given or tables

    def to_json(self, *, as_written: bool = True) -> str:
        """Return the resolved data recipe as canonical JSON, as kept in a shard set's recipe.json.

        Args:
            as_written: with the paths of the recipe's file, else with those that any working directory finds.
        """
        written = self.model_dump(mode="json", context=AS_WRITTEN if as_written else None)
        return to_json(written, indent=2).decode() + "\n"


def without_defaults(text: str) -> str:
    """Return a data recipe in JSON without the keys that have their defaults; a text that is no recipe as it is."""
    try:
        recipe = Recipe.model_validate(from_json(text))
    except (ValueError, RecursionError):
        return text
    said = recipe.model_dump(mode="json", context=AS_WRITTEN, exclude_defaults=True)
    return to_json(said, indent=2).decode()

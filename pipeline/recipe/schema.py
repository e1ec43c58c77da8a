"""The data recipe: what to build, as frozen models. No code, nothing about where or how fast.

The keys' types, bounds, defaults and meanings have their home here. `pipeline.recipe.checks` has the rules between
keys, and `pipeline.builder.checked_recipe` reads files. Nothing here opens the files that a recipe names.
"""

from __future__ import annotations

from operator import not_
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, SerializeAsAny, ValidationInfo, model_validator
from pydantic_core import to_json

from pipeline.recipe.clean_recipe import CleanAllRecipe, CleanRecipe
from pipeline.recipe.key_values import (
    Count,
    Delimiter,
    FormatName,
    Name,
    Patterns,
    SizeBytes,
    Weight,
    distinct,
    no_empty_token,
)
from pipeline.recipe.paths import AS_WRITTEN, RecipePath
from pipeline.recipe.sources import SourceRecipe
from shards.config import Settings

DEFAULT_EOS_TOKEN = "<|endoftext|>"
BOS_TEXTS = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]")
"""The name of BOS in common tokenizers: Llama 2, Gemma, Llama 3, others."""
NUM_BYTES = 256
"""Entries that a byte-level vocabulary always has."""


MAX_UNKNOWN = 0.001
"""Unknown tokens of a source that a build allows: one in a thousand."""


class TokenizerRecipe(Settings):
    """The tokenizer, trained on a sample of the sources or given as a file."""

    vocab_size: Annotated[int, Count, Field(ge=1, le=1 << 24)] | None = None
    """Number of entries, including the 256 bytes and the special tokens. Up to 65,536 entries, a token takes 2 bytes;
    above that, 4. Required unless `file` is given."""
    special_tokens: Annotated[list[str], AfterValidator(distinct), AfterValidator(no_empty_token)] = Field(
        default_factory=lambda: [DEFAULT_EOS_TOKEN]
    )
    """They take the first ids. They are never matched inside documents: text that spells one is encoded as its
    characters."""
    eos_token: str = DEFAULT_EOS_TOKEN
    """The special token that ends each document."""
    bos: bool | str = False
    """The text of the special token that begins each document; a document is then BOS, its tokens, EOS. `true` takes
    the token with which a tokenizer `file` begins documents, or one with a usual name (`<s>`, `<bos>`, ...); `false`:
    none."""
    pretokenizer: Literal["gpt2", "llama3", "qwen2", "o200k"] = "gpt2"
    """How text is split before merges are learned."""
    id_order: Literal["frequency", "merge"] = "frequency"
    """The order of the ids after the special tokens. `frequency`: the entries that occur most often in the sample have
    ids of small bytes, which makes shards smaller. `merge`: the 256 bytes, then the others in the order in which they
    were learned."""
    file: RecipePath | None = None
    """A `tokenizer.json` to use instead of training one, relative to the recipe's folder. It decides the vocabulary,
    the special tokens and the pre-tokenizer: only `eos_token`, `bos` and `max_unknown` may be given with it. It may be
    a byte-level BPE, a SentencePiece-style BPE or a Unigram; docs/tokenizers.md says what each keeps of the text. If
    gigatoken cannot run it, `tokenizers` does, more slowly, and `plan` says so.
    """
    max_unknown: Annotated[float, Field(ge=0, le=1)] = MAX_UNKNOWN
    """For a tokenizer `file` that does not know every character: the build stops if a larger share of a source's tokens
    is unknown, because the text that they stand for is lost."""
    sample_bytes: SizeBytes = 10**9
    """How much text to train on, in the proportions of the mix. Documents over 1 MiB are taken in pieces. So are
    those with over 16 KB without spaces, of which a sample takes 8.4 MB: documents with more left out are counted."""
    sample_weights: dict[str, Weight] | None = None
    """Shares of the sources in that sample, by source name; when absent, the mix's weights. The set's `recipe.json`
    records the shares used."""
    sample_limits: dict[str, CleanRecipe] | None = None
    """The limits with which that sample is drawn, by source name: tables like the source's `clean`, of its presets with
    `when = "mix"`; when absent, the recipe's limits. The tokenizer is kept when limits move later, and the set's
    `recipe.json` records the limits used."""


MAX_EPOCHS = 1000


class PhaseRecipe(Settings):
    """One phase of a curriculum: a part of the training tokens with weights of its own, after the phase before it."""

    name: Name
    """The phase's name in the manifest; distinct."""
    share: Annotated[float, Field(gt=0, le=1)]
    """The phase's part of `mix.tokens`. The shares of all phases must add up to exactly 1, as decimal numbers. A phase
    has at least one shard (`shards.tokens`)."""
    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Weights of sources in this phase, by name: `{ web = 6, math = 4 }`. A source that is not named keeps its own
    `weight`; 0 leaves a source out of the phase."""


class MixRecipe(Settings):
    """How many training tokens, in which phases, and what happens when a source has too few."""

    tokens: Annotated[int, Count, Field(gt=0, lt=1 << 63)] | Literal["max"] = "max"
    """Tokens of the training split; `"max"`: as many as the sources allow at these weights. With a number, the build
    reads no more of a large source than it needs."""
    when_short: Literal["error", "shrink", "repeat"] = "error"
    """What to do if a source is too small: stop, build a smaller set, or repeat that source."""
    max_epochs: Annotated[int, Field(ge=1, le=MAX_EPOCHS)] = 4
    """How often `repeat` may use a document; the manifest records it. Up to 4 times does little harm (Muennighoff et
    al. 2023)."""
    phases: list[PhaseRecipe] = Field(default_factory=list[PhaseRecipe])
    """One table per phase, in the order of training. Each phase has its own shards, and a reader takes the phases in
    order. Without phases, the whole set is one mix."""


class SplitRecipe(Settings):
    """The held-out split, chosen by content hash in the mix's proportions."""

    val_tokens: Annotated[int, Count, Field(ge=0)] = 0
    """Tokens held out for validation."""


class ShardsRecipe(Settings):
    """The size and compression of a shard."""

    tokens: Annotated[int, Count, Field(gt=0)] = 100_000_000
    """The most tokens in a shard, give or take a document. All shards have about the same size."""
    zstd_level: Annotated[int, Field(ge=1, le=19)] | None = None
    """The level of Zstandard with which the tokens are compressed. None: parameters that fit tokens, which take at most
    1 % more space than level 3, and less time if possible."""


class EvaluationRecipe(Settings):
    """Test items that documents of the set must not contain."""

    name: Name
    """The evaluation set's name in counts and messages; distinct."""
    paths: list[RecipePath] = Field(default_factory=list[RecipePath])
    """Globs over its files, relative to the recipe's folder; required without `task`. Each must match a file."""
    task: str | None = None
    """A known eval task instead of files, such as `arc_easy`: the very items that `[[eval.tasks]]` of a train recipe
    scores, from the Hub at a pinned commit. Each is searched for by its question with the right answer."""
    format: FormatName = "auto"
    """As for sources."""
    text: Annotated[str, Field(min_length=1)] = "text"
    """Column of the items' text, such as `question`; dots descend into structs."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """The text between two items of a text file."""
    delimiter: Delimiter | None = None
    """As for sources."""
    max_dropped: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The build stops if `action = "drop"` would drop a larger share of a source: items of a test are rare in text,
    whereas a wrong column matches everywhere."""
    action: Literal["report", "drop"] = "report"
    """`report` counts and shows the documents that hold an item; `drop` also drops them from all sources. Changing this
    encodes nothing again."""


class Recipe(Settings):
    """A whole data recipe."""

    name: Name
    """The set's name: letters, digits, `.`, `_`, `-`."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1337
    """Decides the order of documents inside shards, and which parts of a source a small set and the tokenizer's sample
    take."""
    drop_hashes: list[RecipePath] = Field(default_factory=list[RecipePath])
    """Block lists: files of content hashes as `tokenmill trace --out` writes them, relative to the recipe's folder.
    Documents with these hashes are dropped from all sources when the set is mixed, so adding a list only mixes and
    assembles again. The set's `recipe.json` adds each file's SHA-256."""
    drop_if_matches: Patterns = Field(default_factory=list)
    """Regular expressions in RE2's syntax. A document in which one of them matches anywhere is dropped, from any
    source, before the tokenizer's sample and before encoding. The set's `recipe.json` repeats them in each source."""
    sources: Annotated[list[SerializeAsAny[SourceRecipe]], Field(min_length=1)]
    """One table per source. If two sources hold the same document, the first one keeps it."""
    tokenizer: TokenizerRecipe
    mix: MixRecipe = Field(default_factory=MixRecipe)
    split: SplitRecipe = Field(default_factory=SplitRecipe)
    shards: ShardsRecipe = Field(default_factory=ShardsRecipe)
    clean: CleanAllRecipe = Field(default_factory=CleanAllRecipe, exclude_if=not_)
    """A table applies to all sources that have no table of their own for the preset. The set's `recipe.json` repeats it
    in each source."""
    evaluations: list[EvaluationRecipe] = Field(default_factory=list[EvaluationRecipe])
    """One table per evaluation set. The items are looked for when documents are encoded: changing the files encodes all
    sources again, changing `action` does not."""
    _folder: Path = PrivateAttr(default_factory=Path)

    @model_validator(mode="after")
    def _give_to_sources(self, info: ValidationInfo) -> Self:
        """Copy the recipe's patterns and presets into each source. From here on, a source alone decides what is read
        from it."""
        # The recipe's patterns come first, so that the first reason of a drop does not depend on the source.
        for index, source in enumerate(self.sources):
            patterns = list(dict.fromkeys([*self.drop_if_matches, *source.drop_if_matches]))
            given = {"drop_if_matches": patterns, "clean": source.clean.with_defaults(self.clean)}
            self.sources[index] = source.model_copy(update=given)
        self._folder = info.context or Path()
        object.__setattr__(self, "drop_if_matches", [])
        object.__setattr__(self, "clean", CleanAllRecipe(near_duplicates=self.clean.near_duplicates))
        return self

    def sample_limits(self) -> dict[str, CleanRecipe]:
        """Return the data recipe's limits for the tokenizer's sample, by source, of presets with `when = "mix"`."""
        given = self.tokenizer.sample_limits or {}
        return {
            source.name: given.get(source.name, CleanRecipe()).with_defaults(source.clean.mix_presets())
            for source in self.sources
            if source.clean.presets("mix")
        }

    @property
    def folder(self) -> Path:
        """The folder that the data recipe, as a model, keeps of its file, where its relative paths begin."""
        return self._folder

    def has_relative_paths(self) -> bool:
        """Return whether the data recipe, as a model, has a path that begins at its folder."""
        return self.to_json() != self.to_json(as_written=False)

    def to_json(self, *, as_written: bool = True) -> str:
        """Return the resolved data recipe as canonical JSON, as kept in a shard set's recipe.json.

        Args:
            as_written: with the paths of the recipe's file, else with those that any working directory finds.
        """
        written = self.model_dump(mode="json", context=AS_WRITTEN if as_written else None)
        return to_json(written, indent=2).decode() + "\n"

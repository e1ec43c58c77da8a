"""The data recipe: what to build, as frozen models. No code, nothing about where or how fast.

The keys' types, bounds, defaults and meanings have their home here. `pipeline.recipe.checks` has the rules between
keys, and `pipeline.recipe.read` reads files. Nothing here opens the files that a recipe names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, PositiveFloat, PrivateAttr, model_validator

from pipeline.recipe import paths
from pipeline.recipe.carry import checked_carry
from pipeline.recipe.clean_recipe import CleanAllRecipe, CleanRecipe
from pipeline.recipe.evaluations import EvaluationRecipe
from pipeline.recipe.values import (
    Count,
    Name,
    Patterns,
    SizeBytes,
    checked_keep,
    distinct,
    known_encoding,
    no_empty_token,
)
from shards.config import Settings
from shards.format.compression import Compression, CompressionName

DEFAULT_EOS_TOKEN = "<|endoftext|>"
NUM_BYTES = 256
"""Entries that a byte-level vocabulary always has."""


def _is_off(clean: CleanRecipe) -> bool:
    """Return whether a recipe says nothing of cleaning: it is then written as before there was any."""
    return not clean


def _is_false(value: bool | str) -> bool:
    return value is False


def _is_max_unknown(value: float) -> bool:
    return value == MAX_UNKNOWN


def _is_empty(tables: list[Any]) -> bool:
    return not tables


class SourceRecipe(Settings):
    """One source of documents: files on disk or at any fsspec URL, or a data set on the Hub."""

    name: Name
    """The source's name in the manifest; distinct."""
    kind: Literal["files", "hub"] = "files"
    """Where the documents come from: files, or a data set on the Hub."""
    paths: list[str] = Field(default_factory=list)
    """`files`, required: globs over local paths (`**` descends), relative to the recipe's folder, or fsspec URLs. Each
    must match a file. Paths given by `--set` are relative to the working directory."""
    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    """`hub`, required: the data set, `owner/name`."""
    config: Annotated[str, Field(min_length=1)] | None = None
    """`hub`: the configuration; the data set's default one when absent."""
    split: Annotated[str, Field(min_length=1)] = "train"
    """`hub`: the split."""
    revision: Annotated[str, Field(min_length=1)] = "main"
    """`hub`: branch, tag or commit. Resolved to a commit once; the set's `recipe.json` records that."""
    license: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """What its owner allows, as the data set states it (`odc-by`): for the report and the data card alone."""
    weight: PositiveFloat
    """The source's share of the training tokens, relative to the other weights. With `mix.phases` it is the weight in
    phases that do not name the source, and in the tokenizer's sample."""
    format: Literal["auto", "parquet", "jsonl", "text", "file"] = "auto"
    """`auto` goes by the file's name: `.parquet`; `.jsonl` and `.ndjson`; `.txt`, which needs a `separator`; each also
    with `.gz`, `.zst` or `.bz2`. The first bytes of any other file decide: parquet and JSON lines are read as such,
    other text is one document a file. JSON arrays and CSV, in files whose ending says so or that have none, binary
    data, and compressed text without an ending such as `.md` are refused; `file` takes even these as one document a
    file. `plan` says how each file is read."""
    text: Annotated[str, Field(min_length=1)] = "text"
    """Column of the text; dots descend into structs."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """The text between two documents of a text file; required for text files."""
    content: Literal["column", "software-heritage"] = "column"
    """Where the text is: in the column `text`, or in Software Heritage's archive under the SHA-1 in `blob_id`."""
    blob_id: Annotated[str, Field(min_length=1)] = "blob_id"
    """`software-heritage`: column of the SHA-1 of each file's bytes."""
    fallback_encoding: Annotated[str, AfterValidator(known_encoding)] | None = None
    """`software-heritage`: how to decode files that are not UTF-8, such as `latin-1`; when absent they are dropped."""
    max_missing: Annotated[float, Field(ge=0, le=1)] = 0.02
    """`software-heritage`: the build stops when a larger share of the files cannot be fetched."""
    max_malformed: Annotated[float, Field(ge=0, le=1)] = 0.0
    """`files`: the share of the records of JSON lines that may be malformed: not JSON, not an object, or of another
    type than the recipe means. They are dropped, counted and shown; with 0 the first one stops the build."""
    keep: Annotated[dict[str, JsonValue], AfterValidator(checked_keep)] = Field(default_factory=dict)
    """Predicates on columns: `{ int_score = ">= 3" }`. A row is kept when all hold; a null never holds."""
    min_bytes: SizeBytes = 1
    """Shorter documents are dropped, in bytes of UTF-8; empty ones always are."""
    max_bytes: SizeBytes | None = None
    """Longer documents are dropped."""
    drop_if_matches: Patterns = Field(default_factory=list)
    """The same as the recipe's `drop_if_matches`, for this source alone; looked for after those."""
    carry: Annotated[list[str], AfterValidator(checked_carry)] = Field(default_factory=list[str], exclude_if=_is_empty)
    """Columns whose values go into the set's document tables: `["url", "id"]`; dots descend into structs. Text,
    integers, floats and booleans; all files must give a column one type, or the item states it: `"score: float64"`
    (`string`, `int64`, `float64`, `bool`). `trace --where` finds documents by them. A change encodes again; tokens stay
    the same."""
    max_dropped: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The build stops, and shows some of them, when `drop_if_matches` drops a larger share of the documents: patterns
    are for what is rare, and one document in a hundred more often means a wrong pattern than a bad source."""
    clean: CleanRecipe = Field(default_factory=CleanRecipe, exclude_if=_is_off)
    """The same as the recipe's `clean`, for this source alone: each table here takes the place of the one there."""

    _folder: Path = PrivateAttr(default_factory=Path)

    @property
    def text_column(self) -> str:
        """The column to read: the text itself, or what its content is found by."""
        return self.text if self.content == "column" else self.blob_id

    @property
    def folder(self) -> Path:
        """Where relative `paths` begin: the recipe's folder."""
        return self._folder

    def located(self) -> Self:
        """Return the source as a task gets it, which does not know the recipe's folder."""
        clean = self.clean.with_model(lambda path: paths.join_path(self._folder.absolute(), path))
        return self.model_copy(update={"clean": clean})

    def in_folder(self, folder: Path) -> Self:
        """Return the source with `paths` that begin at a folder."""
        source = self.model_copy()
        source._folder = folder
        return source


MAX_UNKNOWN = 0.001
"""Unknown tokens of a source that a build allows: one in a thousand."""


class TokenizerRecipe(Settings):
    """The tokenizer, trained on a sample of the sources or given as a file."""

    vocab_size: Annotated[int, Count, Field(ge=1, le=1 << 24)] | None = None
    """Entries, the 256 bytes and the special tokens included. Up to 65,536 tokens take 2 bytes, above 4. Required
    unless `file` is given."""
    special_tokens: Annotated[list[str], AfterValidator(distinct), AfterValidator(no_empty_token)] = Field(
        default_factory=lambda: [DEFAULT_EOS_TOKEN]
    )
    """They take the first ids. Never matched inside documents: text that spells one is encoded as its characters."""
    eos_token: str = DEFAULT_EOS_TOKEN
    """The special token that ends each document."""
    bos: bool | str = Field(default=False, exclude_if=_is_false)
    """The special token that begins each document, by its text: each is then BOS, its tokens, EOS. `true` takes the one
    that a tokenizer `file` begins documents with, or names as such (`<s>`, `<bos>`, ...); `false`: none."""
    pretokenizer: Literal["gpt2", "llama3", "qwen2", "o200k"] = "gpt2"
    """How text is split before merges are learned."""
    file: str | None = None
    """A `tokenizer.json` to use instead of training one, relative to the recipe's folder. It decides the vocabulary,
    the special tokens and the pre-tokenizer: only `eos_token`, `bos` and `max_unknown` may be given with it. A
    byte-level BPE, a SentencePiece-style BPE or a Unigram; docs/tokenizers.md says what each keeps of the text. What
    gigatoken cannot run, `tokenizers` encodes, more slowly; `plan` says so.
    """
    max_unknown: Annotated[float, Field(ge=0, le=1)] = Field(default=MAX_UNKNOWN, exclude_if=_is_max_unknown)
    """For a tokenizer `file` that does not know every character: the build stops when a larger share of a source's
    tokens is unknown, because what they stand for is lost."""
    sample_bytes: SizeBytes = 10**9
    """Text to train on, in the proportions of the mix. Documents with a word over 16 KB are left out, and counted."""
    sample_weights: dict[str, PositiveFloat] | None = None
    """Shares of the sources in that sample, by source name; the mix's weights when absent. The set's `recipe.json`
    records those used."""


MAX_EPOCHS = 1000


class PhaseRecipe(Settings):
    """One phase of a curriculum: a part of the training tokens with weights of its own, after the phase before it."""

    name: Name
    """The phase's name in the manifest; distinct."""
    share: Annotated[float, Field(gt=0, le=1)]
    """The phase's part of `mix.tokens`. The shares of all phases add up to exactly 1, as decimal numbers. A phase takes
    a shard at least (`shards.tokens`)."""
    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """Weights of sources in this phase, by name: `{ web = 6, math = 4 }`. A source that is not named has its own
    `weight`; with 0 the phase takes nothing of it."""


class MixRecipe(Settings):
    """How many training tokens, in which phases, and what happens when a source has too few."""

    tokens: Annotated[int, Count, Field(gt=0, lt=1 << 63)] | Literal["max"] = "max"
    """Tokens of the training split, or as many as the sources allow at these weights. With a number, no more of large
    sources is read than it takes."""
    when_short: Literal["error", "shrink", "repeat"] = "error"
    """When a source is too small: stop, build a smaller set, or repeat that source."""
    max_epochs: Annotated[int, Field(ge=1, le=MAX_EPOCHS)] = 4
    """How often `repeat` may use a document; the manifest records it. Up to 4 times costs little (Muennighoff et al.
    2023)."""
    phases: list[PhaseRecipe] = Field(default_factory=list[PhaseRecipe], exclude_if=_is_empty)
    """One table each, in the order of training. Each phase has shards of its own, and a reader takes the phases in
    order. Without any, the whole set is one mix."""


class SplitRecipe(Settings):
    """The held-out split, chosen by content hash in the mix's proportions."""

    val_tokens: Annotated[int, Count, Field(ge=0)] = 0
    """Tokens held out for validation."""


class ShardsRecipe(Settings):
    """The size and compression of a shard."""

    tokens: Annotated[int, Count, Field(gt=0)] = 100_000_000
    """Most tokens in a shard, give or take a document; shards are made equal."""
    compression: CompressionName = "balanced"
    """How the tokens are compressed. `balanced` takes at most 1 % more than Zstandard's level 3, and less time where it
    can. `fast` takes 2 to 9 % more, of simple stories 16 %, and 0.4 to 0.8 of the time; `small` takes 5 to 13 % less,
    and 3 to 5 times the time."""
    zstd_level: Annotated[int, Field(ge=1, le=19)] | None = None
    """A level of Zstandard in the place of `compression`."""

    @property
    def chosen_compression(self) -> Compression:
        """What the writer takes: the name, or the level."""
        return self.compression if self.zstd_level is None else self.zstd_level


class Recipe(Settings):
    """A whole data recipe."""

    name: Name
    """The set's name: letters, digits, `.`, `_`, `-`."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1337
    """Decides the order of documents inside shards, which parts of a source a small set reads, and which the
    tokenizer's sample takes."""
    drop_hashes: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Block lists, files of content hashes as `tokenmill trace --out` writes them; paths are relative to the
    recipe's folder. Documents with these hashes are dropped from all sources when the set is mixed, so that a build
    that gets a list mixes and assembles again, no more. The set's `recipe.json` adds each file's SHA-256."""
    drop_if_matches: Patterns = Field(default_factory=list)
    """Regular expressions, in RE2's syntax: documents that one of them matches anywhere are dropped from all sources,
    before the tokenizer's sample and before encoding. The set's `recipe.json` has them in each source."""
    sources: Annotated[list[SourceRecipe], Field(min_length=1)]
    """One table each. Where two sources hold the same document, the first keeps it."""
    tokenizer: TokenizerRecipe
    mix: MixRecipe = MixRecipe()
    split: SplitRecipe = SplitRecipe()
    shards: ShardsRecipe = ShardsRecipe()
    clean: CleanAllRecipe = Field(default_factory=CleanAllRecipe, exclude_if=_is_off)
    """For all sources without a table of their own for the preset. The set's `recipe.json` has them in each source."""
    evaluations: list[EvaluationRecipe] = Field(default_factory=list[EvaluationRecipe], exclude_if=_is_empty)
    """One table each. The items are looked for when documents are encoded, so that a change of the files, not of
    `action`, encodes all sources again."""
    _folder: Path = PrivateAttr(default_factory=Path)

    @model_validator(mode="after")
    def _give_to_sources(self) -> Self:
        """Put patterns and presets for all into each source: from here on, a source alone says what is read of it."""
        for index, source in enumerate(self.sources):
            patterns = list(dict.fromkeys([*self.drop_if_matches, *source.drop_if_matches]))
            given = {"drop_if_matches": patterns, "clean": source.clean.with_defaults(self.clean)}
            self.sources[index] = source.model_copy(update=given)
        object.__setattr__(self, "drop_if_matches", [])
        object.__setattr__(self, "clean", CleanAllRecipe(near_duplicates=self.clean.near_duplicates))
        return self

    @property
    def folder(self) -> Path:
        """Where relative paths of the recipe begin: the folder of its file."""
        return self._folder

    @property
    def tokenizer_file(self) -> Path | None:
        """The file of `tokenizer.file`."""
        return None if self.tokenizer.file is None else Path(paths.join_path(self._folder, self.tokenizer.file))

    def in_folder(self, folder: Path) -> Self:
        """Return the recipe with paths that begin at a folder."""
        recipe = self.model_copy(update={"sources": [source.in_folder(folder) for source in self.sources]})
        recipe._folder = folder
        return recipe

    def moved_to(self, folder: Path) -> Self:
        """Return the recipe as a file in another folder must say it: its paths lead from there to the same files."""

        def move(path: str) -> str:
            return paths.move_path(path, old=self._folder, new=folder)

        sources = [
            source.model_copy(update={"paths": list(map(move, source.paths)), "clean": source.clean.with_model(move)})
            for source in self.sources
        ]
        evaluations = [one.model_copy(update={"paths": list(map(move, one.paths))}) for one in self.evaluations]
        file = self.tokenizer.file
        tokenizer = self.tokenizer.model_copy(update={"file": None if file is None else move(file)})
        lists = list(map(move, self.drop_hashes))  # with their SHA-256, which ends the last part of the path
        moved = {"drop_hashes": lists, "sources": sources, "evaluations": evaluations, "tokenizer": tokenizer}
        return self.model_copy(update=moved).in_folder(folder)

    def to_json(self) -> str:
        """Return the resolved recipe as canonical JSON, as kept in a shard set's recipe.json."""
        return self.model_dump_json(indent=2) + "\n"

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
from pipeline.recipe.key_values import (
    Count,
    Delimiter,
    FormatName,
    Name,
    Patterns,
    SizeBytes,
    distinct,
    is_none,
    known_encoding,
    no_empty_token,
    normal_encoding,
)
from pipeline.recipe.predicates import checked_predicates
from shards.config import Settings
from shards.format.zstd_parameters import Compression, CompressionName

DEFAULT_EOS_TOKEN = "<|endoftext|>"
NUM_BYTES = 256
"""Entries that a byte-level vocabulary always has."""


def _is_off(clean: CleanRecipe) -> bool:
    """Return whether a recipe has no cleaning; it is then written as before cleaning existed."""
    return not clean


def _is_none(value: Any) -> bool:
    return value is None


def _is_false(value: bool | str) -> bool:
    return value is False


def _is_utf8(encoding: str) -> bool:
    return encoding == "utf-8"


def _is_max_unknown(value: float) -> bool:
    return value == MAX_UNKNOWN


def _is_empty(tables: list[Any]) -> bool:
    return not tables


MAX_NULL = 0.1
"""Records without text that a build allows: data sets often have some, and a wrong column has mostly such records."""


def _is_max_null(value: float) -> bool:
    return value == MAX_NULL


class SourceRecipe(Settings):
    """One source of documents: files on disk or at any fsspec URL, or a data set on the Hub."""

    name: Name
    """The source's name in the manifest; distinct."""
    kind: Literal["files", "hub"] = "files"
    """Where the documents come from: files, or a data set on the Hub."""
    paths: list[str] = Field(default_factory=list)
    """`files`, required: globs over local paths (`**` descends), relative to the recipe's folder, or fsspec URLs. Each
    must match a file, or be a folder of `datasets.save_to_disk`. Paths given by `--set` are relative to the working
    directory."""
    exclude: list[str] = Field(default_factory=list[str], exclude_if=_is_empty)
    """`files`: globs over files to leave out of those that `paths` match, written like `paths`. Each must match one."""
    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    """`hub`, required: the data set, `owner/name`."""
    config: Annotated[str, Field(min_length=1)] | None = None
    """`hub`: the configuration; when absent, the data set's default."""
    split: Annotated[str, Field(min_length=1)] = "train"
    """`hub`: the split."""
    revision: Annotated[str, Field(min_length=1)] = "main"
    """`hub`: branch, tag or commit. It is resolved to a commit once, and the set's `recipe.json` records the commit."""
    license: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The data set's licence as its owner states it (`odc-by`). Only the report and the data card use it."""
    weight: PositiveFloat
    """The source's share of the training tokens, relative to the other weights. With `mix.phases`, it applies to the
    tokenizer's sample and to phases that do not name the source."""
    format: FormatName = "auto"
    """`auto` goes by the file's name, then by its first bytes: [the formats of files](#the-formats-of-files). `file`
    makes each file one document, whatever it holds. `plan` says how each file is read."""
    text: Annotated[str, Field(min_length=1)] = "text"
    """Column of the text; dots descend into structs."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """The text between two documents of a text file; required for text files."""
    encoding: Annotated[str, AfterValidator(known_encoding), AfterValidator(normal_encoding)] = Field(
        default="utf-8", exclude_if=_is_utf8
    )
    """`files`: how the text files of the source are encoded, all of them: `latin-1`, `windows-1252`, `utf-16`,
    `shift_jis`, or another name that Python knows. A byte order mark is removed. Parquet and Arrow have only UTF-8."""
    delimiter: Delimiter | None = Field(default=None, exclude_if=is_none)
    """`csv`: the character between two fields, such as `;`; when absent, a tab for `.tsv` and `.tab`, `|` for `.psv`,
    and otherwise a comma."""
    members: Annotated[list[Annotated[str, Field(min_length=1)]], AfterValidator(distinct)] = Field(
        default_factory=list[str], exclude_if=_is_empty
    )
    """`files`: globs that choose members of tar and zip archives by their paths in the archive; all when absent. A `*`
    also matches `/`, and a glob that begins with `!` leaves members out: `["*.txt", "!*/LICENSE.txt"]`. Members that
    are not chosen are counted."""
    content: Literal["column", "software-heritage"] = "column"
    """Where the text is: in the column `text`, or in Software Heritage's archive under the SHA-1 in `blob_id`."""
    blob_id: Annotated[str, Field(min_length=1)] = "blob_id"
    """`software-heritage`: column of the SHA-1 of each file's bytes."""
    fallback_encoding: Annotated[str, AfterValidator(known_encoding)] | None = None
    """`software-heritage`: how to decode files that are not UTF-8, such as `latin-1`; when absent, such files are
    dropped."""
    max_missing: Annotated[float, Field(ge=0, le=1)] = 0.02
    """`software-heritage`: the build stops when a larger share of the files cannot be fetched."""
    max_malformed: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of the records that may be malformed: text that does not decode, in any format; JSON that is no object;
    rows of CSV with too few or too many fields; values of another type. Malformed records are dropped, counted and
    shown; with 0, the first one stops the build."""
    max_null: Annotated[float, Field(ge=0, le=1)] = Field(default=MAX_NULL, exclude_if=_is_max_null)
    """The share of the records that may have no text, because the column is null or absent there, among those that
    `keep` leaves. They are dropped and counted."""
    keep: Annotated[dict[str, JsonValue], AfterValidator(checked_predicates)] = Field(default_factory=dict)
    """Predicates on columns: `{ int_score = ">= 3" }`. A row is kept if all of them hold; none holds for a null."""
    min_bytes: SizeBytes = 1
    """Shorter documents are dropped, in bytes of UTF-8; empty ones always are."""
    max_bytes: SizeBytes | None = None
    """Longer documents are dropped."""
    drop_if_matches: Patterns = Field(default_factory=list)
    """Like the recipe's `drop_if_matches`, for this source only. The recipe's patterns come first."""
    carry: Annotated[list[str], AfterValidator(checked_carry)] = Field(default_factory=list[str], exclude_if=_is_empty)
    """Columns whose values go into the set's document tables: `["url", "id"]`; dots descend into structs. A column
    holds text, integers, floats or booleans. All files must give it the same type, unless the item states one: `"score:
    float64"` (`string`, `int64`, `float64`, `bool`). `trace --where` finds documents by these values. Changing the list
    encodes the source again; tokens stay the same."""
    max_dropped: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The build stops and shows examples if `drop_if_matches` drops a larger share of the documents. Patterns are for
    what is rare: one document in a hundred more often means a wrong pattern than a bad source."""
    clean: CleanRecipe = Field(default_factory=CleanRecipe, exclude_if=_is_off)
    """Like the recipe's `clean`, for this source only: each table here replaces the one there."""

    _folder: Path = PrivateAttr(default_factory=Path)

    @property
    def text_column(self) -> str:
        """The column to read: the text itself, or the key that finds it."""
        return self.text if self.content == "column" else self.blob_id

    @property
    def folder(self) -> Path:
        """Where relative `paths` begin: the recipe's folder."""
        return self._folder

    def located(self) -> Self:
        """Return the source for a task, which does not know the recipe's folder."""
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
    """Number of entries, including the 256 bytes and the special tokens. Up to 65,536 entries, a token takes 2 bytes;
    above that, 4. Required unless `file` is given."""
    special_tokens: Annotated[list[str], AfterValidator(distinct), AfterValidator(no_empty_token)] = Field(
        default_factory=lambda: [DEFAULT_EOS_TOKEN]
    )
    """They take the first ids. They are never matched inside documents: text that spells one is encoded as its
    characters."""
    eos_token: str = DEFAULT_EOS_TOKEN
    """The special token that ends each document."""
    bos: bool | str = Field(default=False, exclude_if=_is_false)
    """The text of the special token that begins each document; a document is then BOS, its tokens, EOS. `true` takes
    the token with which a tokenizer `file` begins documents, or one with a usual name (`<s>`, `<bos>`, ...); `false`:
    none."""
    pretokenizer: Literal["gpt2", "llama3", "qwen2", "o200k"] = "gpt2"
    """How text is split before merges are learned."""
    file: str | None = None
    """A `tokenizer.json` to use instead of training one, relative to the recipe's folder. It decides the vocabulary,
    the special tokens and the pre-tokenizer: only `eos_token`, `bos` and `max_unknown` may be given with it. It may be
    a byte-level BPE, a SentencePiece-style BPE or a Unigram; docs/tokenizers.md says what each keeps of the text. If
    gigatoken cannot run it, `tokenizers` does, more slowly, and `plan` says so.
    """
    max_unknown: Annotated[float, Field(ge=0, le=1)] = Field(default=MAX_UNKNOWN, exclude_if=_is_max_unknown)
    """For a tokenizer `file` that does not know every character: the build stops if a larger share of a source's tokens
    is unknown, because the text that they stand for is lost."""
    sample_bytes: SizeBytes = 10**9
    """How much text to train on, in the proportions of the mix. Documents with a word over 16 KB are left out and
    counted."""
    sample_weights: dict[str, PositiveFloat] | None = None
    """Shares of the sources in that sample, by source name; when absent, the mix's weights. The set's `recipe.json`
    records the shares used."""
    sample_limits: dict[str, CleanRecipe] | None = Field(default=None, exclude_if=_is_none)
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
    phases: list[PhaseRecipe] = Field(default_factory=list[PhaseRecipe], exclude_if=_is_empty)
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
    compression: CompressionName = "balanced"
    """How the tokens are compressed. Compared with Zstandard's level 3, `balanced` takes at most 1 % more space, and
    less time if possible. `fast` takes 2 to 9 % more space (16 % for simple stories) and 0.4 to 0.8 of the time.
    `small` takes 5 to 13 % less space and 3 to 5 times the time."""
    zstd_level: Annotated[int, Field(ge=1, le=19)] | None = None
    """A level of Zstandard, instead of `compression`."""

    @property
    def chosen_compression(self) -> Compression:
        """The value for the writer: the name, or the level."""
        return self.compression if self.zstd_level is None else self.zstd_level


class Recipe(Settings):
    """A whole data recipe."""

    name: Name
    """The set's name: letters, digits, `.`, `_`, `-`."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1337
    """Decides the order of documents inside shards, and which parts of a source a small set and the tokenizer's sample
    take."""
    drop_hashes: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Block lists: files of content hashes as `tokenmill trace --out` writes them, relative to the recipe's folder.
    Documents with these hashes are dropped from all sources when the set is mixed, so adding a list only mixes and
    assembles again. The set's `recipe.json` adds each file's SHA-256."""
    drop_if_matches: Patterns = Field(default_factory=list)
    """Regular expressions in RE2's syntax. A document in which one of them matches anywhere is dropped, from any
    source, before the tokenizer's sample and before encoding. The set's `recipe.json` repeats them in each source."""
    sources: Annotated[list[SourceRecipe], Field(min_length=1)]
    """One table per source. If two sources hold the same document, the first one keeps it."""
    tokenizer: TokenizerRecipe
    mix: MixRecipe = MixRecipe()
    split: SplitRecipe = SplitRecipe()
    shards: ShardsRecipe = ShardsRecipe()
    clean: CleanAllRecipe = Field(default_factory=CleanAllRecipe, exclude_if=_is_off)
    """A table applies to all sources that have no table of their own for the preset. The set's `recipe.json` repeats it
    in each source."""
    evaluations: list[EvaluationRecipe] = Field(default_factory=list[EvaluationRecipe], exclude_if=_is_empty)
    """One table per evaluation set. The items are looked for when documents are encoded: changing the files encodes all
    sources again, changing `action` does not."""
    _folder: Path = PrivateAttr(default_factory=Path)

    @model_validator(mode="after")
    def _give_to_sources(self) -> Self:
        """Copy patterns and presets for all sources into each source. From here on, a source alone decides what is read
        from it."""
        for index, source in enumerate(self.sources):
            patterns = list(dict.fromkeys([*self.drop_if_matches, *source.drop_if_matches]))
            given = {"drop_if_matches": patterns, "clean": source.clean.with_defaults(self.clean)}
            self.sources[index] = source.model_copy(update=given)
        object.__setattr__(self, "drop_if_matches", [])
        object.__setattr__(self, "clean", CleanAllRecipe(near_duplicates=self.clean.near_duplicates))
        return self

    def sample_limits(self) -> dict[str, CleanRecipe]:
        """Return the limits with which the tokenizer's sample is drawn, by source, of presets with `when = "mix"`."""
        given = self.tokenizer.sample_limits or {}
        return {
            source.name: given.get(source.name, CleanRecipe()).with_defaults(source.clean.mix_presets())
            for source in self.sources
            if source.clean.presets("mix")
        }

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
        """Return the recipe for a file in another folder: its paths lead from there to the same files."""

        def move(path: str) -> str:
            return paths.move_path(path, old=self._folder, new=folder)

        sources = [
            source.model_copy(
                update={
                    "paths": list(map(move, source.paths)),
                    "exclude": list(map(move, source.exclude)),
                    "clean": source.clean.with_model(move),
                }
            )
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

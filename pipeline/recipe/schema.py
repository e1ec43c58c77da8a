"""The data recipe: what to build, as TOML read into frozen models. No code, nothing about where or how fast.

`load_recipe` reports every fault of a file at once. Globs are expanded here only to say that one matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, JsonValue, PositiveFloat, PrivateAttr, model_validator

from pipeline.recipe.values import (
    Name,
    Patterns,
    SizeBytes,
    Whole,
    checked_keep,
    distinct,
    known_encoding,
    no_empty_token,
)
from shards.config import Settings, load_settings

if TYPE_CHECKING:
    from pipeline.mix.block_lists import BlockList

DEFAULT_EOS_TOKEN = "<|endoftext|>"
NUM_BYTES = 256
"""Entries that a byte-level vocabulary always has."""


class SourceRecipe(Settings):
    """One source of documents: files on disk or at any fsspec URL, or a data set on the Hub."""

    name: Name
    """The source's name in the manifest; distinct."""
    kind: Literal["files", "hub"] = "files"
    """Where the documents come from: files, or a data set on the Hub."""
    paths: list[str] = Field(default_factory=list)
    """`files`, required: globs over local paths, relative to the working directory (`**` descends), or fsspec URLs.
    Each must match a file."""
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
    """The source's share of the training tokens, relative to the other weights."""
    format: Literal["auto", "parquet", "jsonl", "text", "file"] = "auto"
    """`auto` goes by the file's name: `.parquet`; `.jsonl`, also `.gz` or `.zst`; `.txt` when there is a `separator`;
    anything else is one document a file."""
    text: Annotated[str, Field(min_length=1)] = "text"
    """Column of the text; dots descend into structs."""
    separator: Annotated[str, Field(min_length=1)] | None = None
    """What stands between two documents in a text file; required for these."""
    content: Literal["column", "software-heritage"] = "column"
    """Where the text is: in the column `text`, or in Software Heritage's archive under the SHA-1 in `blob_id`."""
    blob_id: Annotated[str, Field(min_length=1)] = "blob_id"
    """`software-heritage`: column of the SHA-1 of each file's bytes."""
    fallback_encoding: Annotated[str, AfterValidator(known_encoding)] | None = None
    """`software-heritage`: how to decode files that are not UTF-8, such as `latin-1`; when absent they are dropped."""
    max_missing: Annotated[float, Field(ge=0, le=1)] = 0.02
    """`software-heritage`: the build stops when a larger share of the files cannot be had."""
    keep: Annotated[dict[str, JsonValue], AfterValidator(checked_keep)] = Field(default_factory=dict)
    """Predicates on columns: `{ int_score = ">= 3" }`. A row is kept when all hold; a null never holds."""
    min_bytes: Annotated[int, Field(ge=1)] = 1
    """Shorter documents are dropped, in bytes of UTF-8; empty ones always are."""
    max_bytes: SizeBytes | None = None
    """Longer documents are dropped."""
    drop_if_matches: Patterns = Field(default_factory=list)
    """The same as the recipe's `drop_if_matches`, for this source alone; looked for after those."""
    max_dropped: Annotated[float, Field(ge=0, le=1)] = 0.01
    """The build stops, and shows some of them, when `drop_if_matches` drops a larger share of the documents: patterns
    are for what is rare, and one document in a hundred tells of a wrong pattern more often than of a bad source."""

    @property
    def text_column(self) -> str:
        """The column to read: the text itself, or what its content is found by."""
        return self.text if self.content == "column" else self.blob_id


class TokenizerRecipe(Settings):
    """The tokenizer, trained on a sample of the sources or given as a file."""

    vocab_size: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    """Entries, the 256 bytes and the special tokens included. Up to 65,536 tokens take 2 bytes, above 4. Required
    unless `file` is given."""
    special_tokens: Annotated[list[str], AfterValidator(distinct), AfterValidator(no_empty_token)] = Field(
        default_factory=lambda: [DEFAULT_EOS_TOKEN]
    )
    """They take the first ids. Never matched inside documents: text that spells one is encoded as its characters."""
    eos_token: str = DEFAULT_EOS_TOKEN
    """The special token that ends every document."""
    pretokenizer: Literal["gpt2", "llama3", "qwen2", "o200k"] = "gpt2"
    """How text is split before merges are learned."""
    file: str | None = None
    """A `tokenizer.json` to use instead of training one."""
    sample_bytes: SizeBytes = 10**9
    """Text to train on, in the proportions of the mix. Documents with a word over 16 KB are left out, and counted."""
    sample_weights: dict[str, PositiveFloat] | None = None
    """Shares of the sources in that sample, by source name; the mix's weights when absent. The set's `recipe.json`
    records those used."""


MAX_EPOCHS = 1000


class MixRecipe(Settings):
    """How many training tokens, and what happens when a source has too few."""

    tokens: Annotated[int, Whole, Field(gt=0, lt=1 << 63)] | Literal["max"] = "max"
    """Tokens of the training split, or as many as the sources allow at these weights. With a number, no more of large
    sources is read than it takes."""
    when_short: Literal["error", "shrink", "repeat"] = "error"
    """When a source is too small: stop, build a smaller set, or repeat that source."""
    max_epochs: Annotated[int, Field(ge=1, le=MAX_EPOCHS)] = 4
    """How often `repeat` may use a document; the manifest records it. Up to 4 times costs little (Muennighoff et al.
    2023)."""


class SplitRecipe(Settings):
    """The held-out split, chosen by content hash in the mix's proportions."""

    val_tokens: Annotated[int, Whole, Field(ge=0)] = 0
    """Tokens held out for validation."""


class ShardsRecipe(Settings):
    """The size and compression of a shard."""

    tokens: Annotated[int, Whole, Field(gt=0)] = 100_000_000
    """Most tokens in a shard, give or take a document; shards are made equal."""
    zstd_level: Annotated[int, Field(ge=1, le=19)] = 3
    """Zstandard level of the tokens."""


class Recipe(Settings):
    """A whole data recipe."""

    name: Name
    """The set's name: letters, digits, `.`, `_`, `-`."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1337
    """Decides the order of documents inside shards, which parts of a source a small set reads, and which the
    tokenizer's sample takes."""
    drop_hashes: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """Block lists, files of content hashes as `python -m shards trace --out` writes them; paths are relative to the
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
    _folder: Path = PrivateAttr(default_factory=Path)
    """Where the paths of `drop_hashes` begin."""

    @model_validator(mode="after")
    def _give_patterns_to_sources(self) -> Self:
        """Put the patterns for all into each source: from here on, a source alone says what is read of it."""
        if self.drop_if_matches:
            for index, source in enumerate(self.sources):
                patterns = list(dict.fromkeys([*self.drop_if_matches, *source.drop_if_matches]))
                self.sources[index] = source.model_copy(update={"drop_if_matches": patterns})
            object.__setattr__(self, "drop_if_matches", [])
        return self

    @property
    def block_lists(self) -> list[BlockList]:
        """The files of `drop_hashes`."""
        from pipeline.mix.block_lists import parse_entry

        return [parse_entry(entry, self._folder) for entry in self.drop_hashes]

    def with_block_lists(self, entries: list[str], folder: Path) -> Recipe:
        """Return the recipe with entries of `drop_hashes` that are relative to a folder."""
        recipe = self.model_copy(update={"drop_hashes": entries})
        recipe._folder = folder
        return recipe

    def to_json(self) -> str:
        """Return the resolved recipe as canonical JSON, as kept in a shard set's recipe.json."""
        return self.model_dump_json(indent=2) + "\n"


def load_recipe(path: Path, *, overrides: list[str] | None = None) -> Recipe:
    """Read a data recipe.

    Raises:
        SettingsError: with every fault of the file, globs that match nothing included.
    """
    from pipeline.mix.block_lists import check_entries

    resolved: list[str] = []
    folder = path.parent.absolute()
    check_lists = partial(check_entries, folder, resolved)
    recipe = load_settings(Recipe, path, overrides=overrides, checks=(_check_sources, _check_tokenizer, check_lists))
    return recipe.with_block_lists(resolved, folder) if resolved else recipe


def _check_sources(data: dict[str, Any]) -> Iterator[str]:
    sources = data.get("sources")
    sources = [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
    names = [str(source["name"]) for source in sources if "name" in source]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"sources: {names.count(name)} sources are called {name!r}; expected distinct names"
    for index, source in enumerate(sources):
        yield from _check_kind(f"sources.{index}", source)
    weights = (data.get("tokenizer") or {}).get("sample_weights") if isinstance(data.get("tokenizer"), dict) else None
    if isinstance(weights, dict) and sorted(weights) != sorted(names):
        yield f"tokenizer.sample_weights: expected one weight for each of {sorted(names)}, got {sorted(weights)}"


_KEYS_OF_KIND = {"files": ("paths",), "hub": ("repo", "config", "split", "revision")}
_REQUIRED_KEY = {"files": "paths", "hub": "repo"}
_KEYS_OF_CONTENT = ("blob_id", "fallback_encoding", "max_missing")


def _check_kind(place: str, source: dict[str, Any]) -> Iterator[str]:
    kind, content = source.get("kind", "files"), source.get("content", "column")
    if kind not in _REQUIRED_KEY:  # the model reports that; what the other keys tell is checked all the same
        kind = "hub" if "repo" in source else "files"
    if not source.get(_REQUIRED_KEY[kind]):
        yield f"{place}.{_REQUIRED_KEY[kind]}: required key is missing, or empty: kind = {kind!r} needs it"
    given = {key for key, value in source.items() if not _is_default(key, value)}  # a set's recipe.json has them all
    for other in _KEYS_OF_KIND["hub" if kind == "files" else "files"]:
        if other in given:
            yield f"{place}.{other}: not a key of kind = {kind!r}. Leave it out, or set `kind`."
    if content != "software-heritage":
        for key in _KEYS_OF_CONTENT:
            if key in given:
                yield f"{place}.{key}: only with content = 'software-heritage'. Leave it out, or set `content`."
    elif "text" in given:
        yield f"{place}.text: the text comes from `content`, not from a column. Leave it out."
    if kind == "files":
        yield from _check_files(place, source)


def _is_default(key: str, value: Any) -> bool:
    field = SourceRecipe.model_fields.get(key)
    return field is not None and value == field.get_default(call_default_factory=True)


def _check_files(place: str, source: dict[str, Any]) -> Iterator[str]:
    from pipeline.sources.files import expand_glob, format_of
    from pipeline.sources.formats.byte_io import BROKEN_FILE_ERRORS

    paths = source.get("paths")
    for glob in paths if isinstance(paths, list) else []:
        if not isinstance(glob, str):
            continue  # the model reports it
        try:
            files = expand_glob(glob)
        except (*BROKEN_FILE_ERRORS, ImportError) as error:
            yield f"{place}.paths: {glob!r} cannot be listed: {error}"
            continue
        if not files:
            yield f"{place}.paths: {glob!r} matches no file (working directory: {Path.cwd()})"
            continue
        format_ = str(source.get("format", "auto"))
        formats = {format_of(file.name) for file in files} if format_ == "auto" else {format_}
        if "text" in formats and not source.get("separator"):
            remedy = 'Give `separator`, or format = "file" for one document a file'
            yield f"{place}.separator: required to cut {files[0].name!r} into documents. {remedy}"
        if source.get("separator") and "text" not in formats:
            yield f"{place}.separator: only text files are cut by a separator; {glob!r} is read as {sorted(formats)}"
        if source.get("keep") and formats & {"text", "file"}:
            yield f"{place}.keep: {glob!r} has no columns (read as {sorted(formats)}); predicates need parquet or jsonl"


def _check_tokenizer(data: dict[str, Any]) -> Iterator[str]:
    section = data.get("tokenizer")
    if not isinstance(section, dict):
        return
    specials = section.get("special_tokens", [DEFAULT_EOS_TOKEN])
    eos = section.get("eos_token", DEFAULT_EOS_TOKEN)
    if section.get("file") is not None:
        if not Path(str(section["file"])).is_file():
            yield f"tokenizer.file: no file {section['file']!r} (working directory: {Path.cwd()})"
        return
    if not isinstance(specials, list):
        return
    if eos not in specials:
        yield f"tokenizer.eos_token: {eos!r} is not among special_tokens {specials}"
    vocab_size = section.get("vocab_size")
    least = NUM_BYTES + len(specials)
    if vocab_size is None:
        yield "tokenizer.vocab_size: required key is missing. Give it, or a tokenizer `file`."
    elif isinstance(vocab_size, int) and vocab_size < least:
        yield (
            f"tokenizer.vocab_size: {vocab_size} is too small; {NUM_BYTES} bytes and {len(specials)} special tokens "
            f"need at least {least}"
        )

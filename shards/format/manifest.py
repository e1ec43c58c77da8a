"""The metadata of a shard set as frozen models: `manifest.json` and each shard's own `*.json`.

Reading is strict: unknown keys, loose types and names that leave the folder are refused. The models describe the form
of a file; `shards.validation` checks whether its numbers are true. JSON is written in one canonical way
(`Settings.to_json`), so that equal metadata gives equal bytes.
"""

import json
import re
import reprlib
from collections import Counter
from operator import not_
from typing import Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import AfterValidator, FailFast, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from shards.config import Settings
from shards.errors import MOST_TOLD, InputError, Problem, ProblemKind, ShardSetError, plural, set_error
from shards.stores.parse import make_object

FORMAT = "tokenmill"
FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
COMPANION_FILES = ("README.md", "LICENSE")
"""Files that may be in a set's folder but are not part of the set. Hidden files such as `.gitattributes` may too."""

MAX_METADATA_BYTES = 1 << 28
"""A metadata file larger than this is refused before it is read: 256 MiB lists over 100,000 shards."""

MAX_SIDECAR_BYTES = 1 << 24
"""The same limit for a shard's own metadata: 16 MiB lists over 100,000 sources."""

MAX_KEYS = 1 << 17
"""An object of metadata with more keys is refused: each wrong one would cost a thousand times its bytes to report."""

BLOCK_LIST_REASON = "in block list "
"""The beginning of the reason under which documents in a block list are dropped; the file's name follows."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")

Split = Literal["train", "val"]
Role = Literal["system", "user", "assistant"]
Dtype = Literal["uint16", "uint32"]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
VocabSize = Annotated[int, Field(ge=1, le=1 << 32)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ContentHash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


def _plain_name(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise ValueError(f"path_unsafe: {name!r} is not a plain file name in the set's own folder")
    return name


PlainName = Annotated[str, AfterValidator(_plain_name)]


ItemT = TypeVar("ItemT")
Rows = Annotated[list[ItemT], FailFast()]
"""A list that is refused at its first wrong item: a hostile one has millions."""


def is_none(value: Any) -> bool:
    """Return whether a key of a manifest, or of another record, is left out."""
    return value is None


LEFT_OUT: Any = Field(default=None, exclude_if=is_none)
"""The default of a key that is written only if it has a value."""


class FileEntry(Settings):
    """A file of the set: its plain name, size in bytes and SHA-256."""

    path: PlainName
    bytes: Count
    sha256: Sha256


class SourceCounts(Settings):
    """The contribution of one source: tokens (EOS included) and documents."""

    tokens: Count
    documents: Count


class TokenizerEntry(Settings):
    """The tokenizer file, and the ids that a reader needs."""

    file: PlainName
    sha256: Sha256
    eos_id: Count
    bos_id: Count | None = LEFT_OUT
    """The id that begins every document; None if none does."""
    special_tokens: dict[str, Count]


class ChatEntry(Settings):
    """How the conversations of a set are written as tokens."""

    before: Annotated[dict[Role, str], Field(min_length=3)]
    """What stands before the content of a message, by role."""
    after: str
    """What stands after it."""
    opening: Annotated[list[Count], Field(min_length=1, max_length=1024)]
    """The ids of what stands before an answer; the first is a special token's."""


class RecipeEntry(Settings):
    """The resolved recipe that built the set."""

    file: PlainName
    sha256: Sha256


class RewritingEntry(Settings):
    """How much of a source's encoded documents the tokenizer kept, including documents that the mix left out."""

    documents: Count
    rewritten: Count
    """Documents whose tokens have other bytes than their text."""
    text_bytes: Count
    """Bytes of their text, as the source has it."""
    token_bytes: Count
    """Bytes that their tokens stand for."""
    tokens: Count
    """Without BOS and EOS."""
    unknown: Count
    """Tokens that stand for characters outside the vocabulary, which are lost."""


class SourceEntry(Settings):
    """One source as the build found it: what it offered, and how many documents were dropped for each reason."""

    name: str
    weight: float
    revision: str
    """Digest of the content that was read, or the commit of a hosted data set."""
    tokens_available: Count
    """Tokens of the distinct documents that were read, EOS included, before the mix took its share."""
    documents_available: Count
    unread_files: Count = 0
    """Files of the source that were not read, because the others held enough tokens."""
    unread_bytes: Count = 0
    """Stored bytes of these files, and of the unread text of other files. 0: the whole source was read."""
    dropped: dict[str, Count]
    """Documents dropped before the mix, by reason."""
    epochs: Annotated[int, Field(ge=1)]
    """The most times that any training document of this source occurs: 1, unless the source was repeated."""
    rewriting: RewritingEntry | None = LEFT_OUT
    """None if the tokenizer keeps every byte."""
    trained_tokens: Count | None = LEFT_OUT
    """The targets among the tokens of its training documents; None if these are no conversations."""


class BlockListEntry(Settings):
    """A block list whose documents were dropped from all sources before the mix."""

    file: str
    """The file as the recipe names it. The sources' `dropped` counts its documents as `in block list FILE`."""
    sha256: Sha256
    hashes: Count
    """Distinct hashes in the list."""
    found: Count
    """Hashes in the list that occur among the documents that were read."""
    documents: Count
    """Documents that the list dropped, copies included. A document in several lists counts for the first one."""


class EvalTaskEntry(Settings):
    """The items of an eval task that the set's builder searched for in its sources."""

    task: str
    items: Count
    items_sha256: Sha256
    """Of the content hashes of all items, in their order: it tells whether other items are the same."""
    too_short: Rows[ContentHash]
    """Content hashes of items that are too short to be searched for; distinct, in order."""
    held: Rows[ContentHash]
    """Content hashes of items that a document of the training split holds; distinct, in order."""


class MixEntry(Settings):
    """A source's share of the training split: requested and achieved, in tokens and as a fraction of all."""

    source: str
    requested: float
    achieved: float
    requested_tokens: Count
    achieved_tokens: Count


class PhaseEntry(Settings):
    """A phase of the mix: shards of the training split that follow each other, with shares of their own."""

    name: str
    share: float
    """Its part of the split's `requested_tokens`."""
    requested_tokens: Count
    tokens: Count
    documents: Count
    mix: Rows[MixEntry]
    """One row per source, as the set's `mix`, of this phase."""


class SplitEntry(Settings):
    """Totals of one split."""

    requested_tokens: Count
    """Tokens requested for this split. Each source's target is its share of them."""
    tokens: Count
    documents: Count
    sources: dict[str, SourceCounts]


class ShardFiles(Settings):
    """The three files of one shard."""

    tokens: FileEntry
    documents: FileEntry
    metadata: FileEntry

    @property
    def entries(self) -> tuple[FileEntry, FileEntry, FileEntry]:
        """The three entries of a shard's files in the manifest: tokens, documents, metadata."""
        return self.tokens, self.documents, self.metadata


class ShardEntry(Settings):
    """One shard as the manifest lists it."""

    name: PlainName
    split: Split
    phase: str | None = LEFT_OUT
    """The phase that the shard belongs to; None for validation, and in a set without phases."""
    tokens: Count
    documents: Count
    sources: dict[str, SourceCounts]
    tokens_sha256: Sha256
    files: ShardFiles


class SidecarFiles(Settings):
    """The files that a shard's own metadata describes."""

    tokens: FileEntry
    documents: FileEntry


class Sidecar(Settings):
    """A shard's own metadata (`train-00000.json`): enough to use the shard alone."""

    format: Literal["tokenmill"] = FORMAT
    format_version: Literal[1] = FORMAT_VERSION
    name: PlainName
    split: Split
    phase: str | None = LEFT_OUT
    dtype: Dtype
    vocab_size: VocabSize
    eos_id: Count
    bos_id: Count | None = LEFT_OUT
    tokenizer_sha256: Sha256
    tokens: Count
    documents: Count
    sources: dict[str, SourceCounts]
    tokens_sha256: Sha256
    files: SidecarFiles


class Manifest(Settings):
    """The set's metadata. Written last: a folder with a manifest is a complete set."""

    format: Literal["tokenmill"] = FORMAT
    # What the set is, and how its tokens are to be read.
    format_version: Literal[1] = FORMAT_VERSION
    name: str
    dtype: Dtype
    vocab_size: VocabSize
    tokenizer: TokenizerEntry
    recipe: RecipeEntry
    chat: ChatEntry | None = LEFT_OUT
    """None if the set has no conversations."""
    # What the build read, and what it left out.
    sources: Rows[SourceEntry]
    drop_hashes: Rows[BlockListEntry] = Field(default=[])
    eval_tasks: Rows[EvalTaskEntry] = Field(default=[], exclude_if=not_)
    """The recipe's evaluation sets with a `task`, in its order."""
    # The shares of the training split.
    mix: Rows[MixEntry]
    phases: Rows[PhaseEntry] = Field(default=[], exclude_if=not_)
    """In the order of training; empty in a set without phases."""
    # The totals, and every file.
    splits: dict[Split, SplitEntry]
    shards: Rows[ShardEntry]

    def __repr__(self) -> str:
        return f"<Manifest of {self.summary}>"

    __str__ = __repr__

    @property
    def summary(self) -> str:
        """The set's name, and the tokens and shards of each split, in one line."""
        shards = Counter(shard.split for shard in self.shards)
        splits = (
            f"{name} {plural(part.tokens, 'token')} in {plural(shards[name], 'shard')}"
            for name, part in self.splits.items()
        )
        return f"{self.name!r}: {', '.join(splits)}"

    @property
    def files(self) -> list[FileEntry]:
        """The files of every shard, in order."""
        return [file for shard in self.shards for file in shard.files.entries]

    @property
    def source_names(self) -> list[str]:
        """The names of the sources, in the set's order."""
        return [source.name for source in self.sources]

    @property
    def conversations(self) -> list[str]:
        """The sources whose documents are conversations, in the set's order."""
        return [source.name for source in self.sources if source.trained_tokens is not None]

    @property
    def epochs(self) -> dict[str, int]:
        """How often a training document of each source may occur."""
        return {source.name: source.epochs for source in self.sources}

    def count(self, split: str, source: str) -> SourceCounts:
        """Return the tokens and documents of a source in a split; none if either is not there."""
        nothing = SourceCounts(tokens=0, documents=0)
        return self.splits[split].sources.get(source, nothing) if split in self.splits else nothing

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file, by name: tokenizer, recipe, then each shard's in order."""
        files = {self.tokenizer.file: self.tokenizer.sha256, self.recipe.file: self.recipe.sha256}
        return files | {file.path: file.sha256 for file in self.files}

    @model_validator(mode="after")
    def _list_once(self) -> Self:
        """Refuse a manifest that lists a shard or a file twice: readers would count it twice."""
        # The files that are not of a shard count as well.
        files = [MANIFEST_FILE, self.tokenizer.file, self.recipe.file, *(file.path for file in self.files)]
        for what, names in (("shard", [shard.name for shard in self.shards]), ("file", files)):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                message = f"listed more than once: {what} {reprlib.repr(twice)}; expected each once"
                raise PydanticCustomError("listed_twice", message)  # pyright: ignore[reportArgumentType]
        return self


ModelT = TypeVar("ModelT", Manifest, Sidecar)


def block_list_reason(file: str) -> str:
    """Return the reason under which a manifest's sources count the documents that a block list drops."""
    return f"{BLOCK_LIST_REASON}{file}"


def dtype_for(vocab_size: int) -> Dtype:
    """Return the manifest's token dtype for a vocabulary: `uint16`, or `uint32` above 65,536 entries."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def parse_json(model: type[ModelT], text: bytes, *, where: str) -> ModelT:
    """Parse the JSON of a manifest or sidecar into its model.

    Raises:
        ShardSetError: with one problem per fault: `format_unknown`, `version_unknown`, `path_unsafe` or
            `manifest_invalid`.
    """
    try:
        _check_keys(text)
        parsed = model.model_validate_json(text)
    except InputError as error:
        raise set_error("manifest_invalid", where, f"{error}. Copy or build it again.") from error
    except ValidationError as error:
        problems = [_to_problem(detail, where) for detail in _first_faults(error)]
        if more := error.error_count() - len(problems):
            problems.append(
                Problem("manifest_invalid", where, f"{plural(more, 'more fault')}. Copy or build it again.")
            )
        # What else differs follows from the other format or version.
        foreign = [problem for problem in problems if problem.kind in ("format_unknown", "version_unknown")]
        raise ShardSetError(foreign[:1] or problems) from error
    # The models give these two to whoever makes one; a file must state them.
    for key in ("format", "format_version"):
        if key not in parsed.model_fields_set:
            raise set_error("manifest_invalid", where, f"{key}: missing; expected {getattr(parsed, key)!r}")
    return parsed


def _check_keys(text: bytes) -> None:
    """Check that no object of a JSON text has a key twice or over `MAX_KEYS`. What is no JSON passes.

    Raises:
        InputError: an object has.
    """

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > MAX_KEYS:
            raise InputError(f"an object has {len(pairs):,} keys; expected at most {MAX_KEYS:,}")
        make_object(pairs)

    try:
        json.loads(text, object_pairs_hook=check)
    except InputError:
        raise
    except (ValueError, RecursionError):
        pass  # the model says what it is


def _first_faults(error: ValidationError) -> list[dict[str, Any]]:
    """Return the first of pydantic's faults of a manifest; all of them would take more memory than the file."""
    if error.error_count() <= MOST_TOLD:
        return [dict(detail) for detail in error.errors(include_url=False)]
    text, place, found = error.json(include_url=False, include_input=False, include_context=False), 1, list[Any]()
    for _ in range(MOST_TOLD):
        detail, place = json.JSONDecoder().raw_decode(text, place)
        found.append(detail)
        place += 1  # the comma
    return cast("list[dict[str, Any]]", found)


def _to_problem(detail: dict[str, Any], where: str) -> Problem:
    place = ".".join(str(part) for part in detail["loc"])
    # reprlib: the input may be a whole hostile document.
    telling = detail["type"] in ("missing", "json_invalid", "listed_twice")
    got = "" if telling or "input" not in detail else f"; got {reprlib.repr(detail.get('input'))}"
    # Some faults have kinds of their own, since their remedies differ.
    kind: ProblemKind = "manifest_invalid"
    if place == "format":
        kind = "format_unknown"
    elif place == "format_version":
        kind, got = "version_unknown", f"{got}. Build the set again, or read it with what wrote it."
    elif "path_unsafe: " in detail["msg"]:
        kind = "path_unsafe"
    return Problem(kind, where, f"{place + ': ' if place else ''}{detail['msg']}{got}")

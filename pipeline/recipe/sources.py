"""The sources of a data recipe: the keys that all kinds share, and a class for each kind with the keys of its own.

The keys of a kind say where its documents are. What is done with them is said by the keys that all kinds share.
"""

from collections.abc import Iterator, Sequence
from operator import not_
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import AfterValidator, Field, JsonValue, ModelWrapValidatorHandler, ValidationInfo, model_validator

from pipeline.recipe.clean_recipe import CleanRecipe
from pipeline.recipe.key_values import (
    Column,
    Delimiter,
    FormatName,
    IfGiven,
    Name,
    Patterns,
    Proportion,
    Quote,
    SizeBytes,
    SourceWeight,
    normal_encoding,
)
from pipeline.recipe.paths import RecipeGlob
from pipeline.recipe.predicates import Predicate, checked_predicates, parse_predicate
from shards.config import Document, Settings, Share, Text, in_form

MAX_NULL = 0.1
"""Records without text that a build allows: data sets often have some, and a wrong column has mostly such records."""
SourceKind = Literal["files", "hub"]


class SourceRecipe(Settings):
    """One source of documents: files, or a data set on the Hub."""

    place_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the kind that say where its files are, and never what is read from a file of a given name and version.
    Digests and cached spans leave them out: another place of the same files runs nothing again."""

    name: Name
    """The source's name; distinct."""
    kind: SourceKind = "files"
    """Where the documents come from."""
    license: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The data set's licence (`odc-by`), for the report and the dataset card."""
    weight: SourceWeight | None = None
    """The source's share of the training tokens, relative to the other weights; 0 leaves the source out. If no source
    has one, all text is in the set once. With `mix.phases`: for the tokenizer's sample, and phases that do not name the
    source."""
    take: Share = 1.0
    """The share of the source's documents to take, chosen by content hash: [a part of a
    source](../docs/data.md#a-part-of-a-source). Changing it re-encodes nothing."""
    format: FormatName = "auto"
    """`auto` goes by the file's name, then by its first bytes: [the formats of
    files](../docs/data.md#formats). `file` makes each file one document."""
    text: Column = "text"
    """Column of the text; dots descend into structs."""
    messages: IfGiven[Column | Annotated[list[Column], Field(min_length=2, max_length=2)]] = None
    """Instead of `text`, of a source of conversations: a column of lists of messages, records of `role` and `content`
    or `from` and `value`; or two columns of text, `["prompt", "completion"]`."""
    separator: Text | None = None
    """The text between two documents of a text file, which needs it."""
    join_bytes: Annotated[SizeBytes, Field(le=1 << 20)] | None = None
    """With `separator`: shorter parts are joined, with the separators between them, to documents of at least so many
    bytes."""
    encoding: Annotated[str, AfterValidator(normal_encoding)] = "utf-8"
    """The encoding of all text files of the source: `latin-1`, `windows-1252`, `utf-16`, or another name that Python
    knows."""
    delimiter: Delimiter | None = None
    """`csv`: the character between two fields; when absent, a tab for `.tsv` and `.tab`, `|` for `.psv`, else a
    comma."""
    quote: Quote | None = None
    """`csv`: `"` if quotes enclose fields, empty if they are characters; when absent, a file in which that is not clear
    stops the build."""
    content: Literal["column", "software-heritage"] = "column"
    """Where the text is: in the column `text`, or in Software Heritage's archive under the SHA-1 in `blob_id`."""
    blob_id: Column = "blob_id"
    """The column of that SHA-1."""
    max_missing: Proportion = 0.02
    """The build stops when more of the files cannot be fetched."""
    max_malformed: Proportion = 0.0
    """The share of the records that may be malformed: undecodable text, broken JSON, rows of CSV with too few or too
    many fields, values of another type. They are dropped and counted; with 0, the first one stops the build."""
    max_null: Proportion = MAX_NULL
    """The share of the records that may have no text. They are dropped and counted."""
    keep: Annotated[dict[Column, JsonValue], AfterValidator(checked_predicates)] = {}
    """Predicates on columns: `{ int_score = ">= 3", date = ">= 2020-01-31" }`. A row stays if all hold; none holds for
    a null. A time without a zone is UTC, also in text. Folders such as `year=2020/` (Hive) are columns, too."""
    min_bytes: SizeBytes = 1
    """Shorter documents are dropped, in bytes of UTF-8; empty ones always."""
    max_bytes: SizeBytes | None = None
    """Longer documents are dropped."""
    max_document_bytes: SizeBytes = 1 << 30
    """A longer document or record stops the build, and so does a compressed file with more text than this and than 100
    times its size."""
    drop_if_matches: Patterns = []
    """Like the recipe's `drop_if_matches`, for this source."""
    max_dropped: Proportion = 0.01
    """The build stops and shows examples if `drop_if_matches` drops a larger share of the documents."""
    clean: CleanRecipe = Field(default_factory=CleanRecipe, exclude_if=not_)
    """Like the recipe's `clean`, for this source: each table replaces the one there."""

    @classmethod
    def variants(cls) -> Sequence[type[Self]]:
        """Return the classes of the kinds of sources, or the class itself if it is one."""
        return cls.__subclasses__() or [cls]

    @classmethod
    def kind_of(cls, table: Document) -> type[Self]:
        """Return the kind that a raw source is of; if `kind` is wrong, the one that its keys suggest."""
        kinds = {kind.model_fields["kind"].default: kind for kind in cls.variants()}
        named = table.get("kind", "files")
        if isinstance(named, str) and named in kinds:
            return kinds[named]
        shared = SourceRecipe.model_fields.keys()
        return max(kinds.values(), key=lambda kind: len((kind.model_fields.keys() - shared) & table.keys()))

    @classmethod
    def key_names(cls) -> list[str]:
        """Return the keys of all kinds of sources; those of one kind come after `kind`."""
        own = [
            key for kind in SourceRecipe.variants() for key in kind.model_fields if key not in SourceRecipe.model_fields
        ]
        return list(dict.fromkeys(["name", "kind", *own, *SourceRecipe.model_fields]))

    @model_validator(mode="wrap")
    @classmethod
    def _choose_kind(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Make a source of the recipe of its kind."""
        if not cls.__subclasses__() or not isinstance(data, dict):
            return handler(data)
        return cls.kind_of(cast("Document", data)).model_validate(data, context=info.context)

    def rules(self) -> Iterator[str]:
        """Yield the faults between the keys of a source."""
        if self.content == "column":
            why = "only with content = 'software-heritage'. Leave it out, or set `content`."
            yield from self.refuse(("blob_id", "max_missing"), why)
        else:
            why = "the text comes from `content`, not from a column. Leave it out."
            yield from self.refuse(("text", "messages"), why)
        if self.has_conversations:
            yield from self.refuse(
                ("text",), "the text of a conversation comes from `messages`. Leave one of them out."
            )
            if isinstance(self.messages, list) and len({*map(str, self.messages)}) < len(self.messages):
                yield f"messages: {self.messages} names one column twice. Give the prompts' and the completions'."
        if self.max_bytes is not None and self.min_bytes > self.max_bytes:
            yield f"min_bytes: {self.min_bytes} is over max_bytes = {self.max_bytes}: no document is left. Correct one."
        if self.separator is None:
            yield from self.refuse(("join_bytes",), "without `separator`, no file has parts. Leave it out.")
        if isinstance(self.separator, str) and isinstance(self.encoding, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            try:
                self.separator.encode(self.encoding)
            except UnicodeEncodeError:
                yield f"separator: cannot be written in {self.encoding}, so no file has it. Correct one of them."

    @property
    def has_conversations(self) -> bool:
        """Whether the documents of a source are conversations: it alone says so, never their text."""
        return self.messages is not None

    @property
    def text_columns(self) -> list[str]:
        """The columns of a source to read: the text itself, its messages, or the key that finds it."""
        named = getattr(self, self.text_key)
        return [named] if isinstance(named, str) else list(named)

    @property
    def text_key(self) -> Literal["text", "messages", "blob_id"]:
        """The source's key of the recipe that names the column to read."""
        if self.has_conversations:
            return "messages"
        return "text" if self.content == "column" else "blob_id"

    @property
    def columns(self) -> dict[str, str]:
        """The columns of a source that are read, each with the key of the recipe that names it; the text's first."""
        return dict.fromkeys(self.text_columns, self.text_key) | dict.fromkeys(self.keep, "keep")

    @property
    def predicates(self) -> list[Predicate]:
        """The predicates of a source's `keep`, in order."""
        return [parse_predicate(column, condition) for column, condition in self.keep.items()]

    @property
    def pinned_revision(self) -> str | None:
        """The version that the recipe pins a source's documents to; None if the documents' own digest is it."""
        return None


class FilesSource(SourceRecipe):
    """Files on disk, or at any URL that fsspec opens."""

    place_keys = ("paths", "exclude", "verify")

    kind: SourceKind = "files"
    paths: Annotated[list[RecipeGlob], Field(min_length=1)]
    """`files`, required: globs over local paths (`**` descends), relative to the recipe's folder, or fsspec URLs. Each
    must match a file, or be a folder of `datasets.save_to_disk`."""
    exclude: list[RecipeGlob] = []
    """`files`: globs over files to leave out. Each must match one."""
    verify: IfGiven[Literal["sha256"]] = None
    """`files`: `sha256` reads all local files in each build, to see an edit that keeps size and modification time."""


class HubSource(SourceRecipe):
    """A data set on the Hub."""

    place_keys = ("repo", "config", "split", "revision")

    kind: SourceKind = "hub"
    repo: Annotated[str, in_form(r"[\w.-]+/[\w.-]+", 'OWNER/NAME, such as "HuggingFaceFW/fineweb-edu"')]
    """`hub`, required: the data set, `owner/name`."""
    config: Text | None = None
    """`hub`: the configuration; when absent, the default one."""
    split: Text = "train"
    """`hub`: the split."""
    revision: Text = "main"
    """`hub`: branch, tag or commit. The set's `recipe.json` records the commit."""

    @property
    def pinned_revision(self) -> str | None:
        """The commit that the recipe pins a source of the Hub to."""
        return self.revision


def read_from_files(source: Document) -> None:
    """Take out of a raw source what says where its documents are, so that `paths` can say it; rows hold their text."""
    places = (key for kind in SourceRecipe.variants() for key in kind.place_keys)
    for key in ("kind", *places, "content", "blob_id", "max_missing"):
        source.pop(key, None)

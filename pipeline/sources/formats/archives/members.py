"""Members of archives as documents: which are read, which are not and why, and batches of their texts.

A member is only read, never written to a disk, so its name is provenance alone. Each member that is not a document is
counted with its reason. One that the recipe asks for but that cannot be a document (an archive in the archive, an
encrypted or damaged member, one of more than `MAX_BYTES`) is malformed. Memory: a batch and one member.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_texts
from pipeline.sources.base import SourceError, TextBatch, describe_place
from pipeline.sources.formats.columns import check_columns
from pipeline.sources.formats.detect import HEAD_BYTES, describe_known, format_of_name, is_binary
from pipeline.sources.formats.encodings import decode_whole
from pipeline.sources.formats.span_reader import SpanReader, in_batches
from shards.terminal.display import printable

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

MAX_BYTES = 256 << 20
"""The most bytes of a member: more is a data set, or a bomb that would fill a worker's memory."""
_COLUMNS = ("member",)
"""The columns of members beside their text: their names."""
_TEXT = "text"
_REMEDY = "Leave it out by `members`"

Document = tuple[int, bytes, tuple[str | None, ...]]
"""A document that comes by itself: its row in the span, its text in UTF-8, and a value for each column."""

MemberKind = Literal["file", "folder", "link", "device", "sparse file"]


class MemberError(SourceError):
    """Why a member cannot be a document, to be counted or refused. The rest of the archive can be read."""


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of an archive."""

    name: str
    """Its path in the archive; bytes that are not UTF-8 are written as `\\xff`."""
    kind: MemberKind
    size: int
    """Bytes of its content, as the archive states them."""
    offset: int
    """Where it begins in the archive."""
    stored_bytes: int
    """Bytes of its content in the archive."""
    read: Callable[[], bytes]
    """Returns its content, until the next member is asked for. Raises MemberError."""


def readable_name(name: str) -> str:
    """Return a member's name as valid text: Python decodes other bytes as surrogates."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_text_columns(source: SourceRecipe, name: str, columns: Iterable[str] = _COLUMNS) -> tuple[str, ...]:
    """Check the columns that a recipe names against those of documents, and return the types of those to carry.

    Raises:
        SourceError: naming the columns that exist.
    """
    schema = pa.schema([(_TEXT, pa.large_string()), *((column, pa.string()) for column in columns)])
    return check_columns(schema, source, name, has_text_column=False)


def make_batches(
    reader: SpanReader, documents: Iterable[Document], columns: Iterable[str] = _COLUMNS
) -> Iterator[TextBatch]:
    """Stream documents that come one by one, with columns of text."""
    for part in in_batches(documents, lambda document: len(document[1])):
        table: dict[str, Any] = {_TEXT: wrap_texts(pa.large_binary(), [text for _, text, _ in part])}
        for place, column in enumerate(columns):
            table[column] = pa.array([values[place] for _, _, values in part], pa.string())
        yield reader.make_batch(pa.table(table), np.array([row for row, _, _ in part], np.uint32), _TEXT)


def read_members(reader: SpanReader, members: Iterable[Member]) -> Iterator[TextBatch]:
    """Stream the members of a span as documents, a row each; rows count all members, so that `row` finds one by number.

    Raises:
        SourceError: a member is malformed and the source's `max_malformed` is 0.
    """
    return make_batches(reader, _find_documents(reader, members))


def _find_documents(reader: SpanReader, members: Iterable[Member]) -> Iterator[Document]:
    is_chosen = choose_members(reader.source.members)
    for row, member in enumerate(members):
        if should_read(member, is_chosen, reader):
            try:
                yield row, read_document(member, reader.source.encoding), (member.name,)
            except MemberError as fault:
                refuse_member(reader, describe_place(reader.span, row, "member"), member.name, fault)


def refuse_member(reader: SpanReader, place: str, name: str, fault: object) -> None:
    """Count a malformed member.

    Raises:
        SourceError: the source's `max_malformed` is 0.
    """
    reader.refuse(f"{place}, {printable(name)}", fault, _REMEDY)


def should_read(member: Member, is_chosen: Callable[[str], bool], reader: SpanReader) -> bool:
    """Return whether a member is a file that the recipe asks for; count it if not. Folders are not counted."""
    if member.kind == "folder":
        return False
    if not is_chosen(member.name):
        reader.not_read["not one of `members`"] += 1
    elif member.kind != "file":
        reader.not_read[f"member is a {member.kind}"] += 1
    else:
        return True
    return False


def read_document(member: Member, encoding: str) -> bytes:
    """Return a member's text in UTF-8.

    Raises:
        MemberError: it is not one document of text, or cannot be read.
    """
    check_name(member.name)
    if format_of_name(member.name) not in (None, "text"):
        raise MemberError(
            'is an archive or a data set of its own, by its name; `paths = ["zip://*.jsonl::FILE"]` reads some'
        )
    # A data set or binary data in a member would become one document.
    data = read_content(member)
    if kind := describe_known(data):
        raise MemberError(f"holds {kind}, not text")
    text = decode_whole(data, encoding)
    if is_binary(text[:HEAD_BYTES]):
        raise MemberError("holds binary data, not text")
    return text


def read_content(member: Member) -> bytes:
    """Return a member's bytes.

    Raises:
        MemberError: they are too many, or cannot be read.
    """
    if member.size > MAX_BYTES:
        raise too_long(member.size, MAX_BYTES)
    return member.read()


def too_long(size: int, most: int) -> MemberError:
    """Return the fault of a document with more bytes than it may have."""
    return MemberError(f"is {size:,} bytes long; a document has at most {most:,}")


def check_name(name: str) -> None:
    """Refuse names that lead out of the folder in which an archive is unpacked: such an archive wants to do harm.

    Raises:
        MemberError: the name is absolute or has a part `..`.
    """
    # Names are provenance alone, but such an archive is not to be trusted.
    parts = name.replace("\\", "/").split("/")
    if not parts[0] or re.fullmatch(r"[A-Za-z]:", parts[0]):
        raise MemberError("has an absolute path")
    if ".." in parts:
        raise MemberError("has `..` in its path")


def choose_members(globs: list[str]) -> Callable[[str], bool]:
    """Return what tells whether a source's `members` choose a member's name; all are chosen if there are none.

    A `*` also matches `/`. A glob that begins with `!` leaves out what the others choose.
    """
    wanted = [re.compile(fnmatch.translate(glob)) for glob in globs if not glob.startswith("!")]
    others = [re.compile(fnmatch.translate(glob[1:])) for glob in globs if glob.startswith("!")]

    def is_chosen(name: str) -> bool:
        name = name.removeprefix("./")
        chosen = not wanted or any(glob.match(name) for glob in wanted)
        return chosen and not any(glob.match(name) for glob in others)

    return is_chosen

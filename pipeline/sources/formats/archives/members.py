"""Members of archives as documents: which are read, which are not and why, and batches of their texts.

A member is only read, never written to a disk, so its name is provenance alone. Each member that is not a document is
counted with its reason. One that the recipe asks for but that cannot be a document (an archive in the archive, an
encrypted or damaged member, one of more than `MAX_BYTES`) is malformed. Memory: a batch and one member.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from pipeline.sources.base import TextBatch, describe_place
from pipeline.sources.formats.archives.documents import TEXT, Documents, MemberError
from pipeline.sources.formats.columns import check_columns
from pipeline.sources.formats.detect import HEAD_BYTES, describe_known, format_of_name, is_binary
from pipeline.sources.formats.encodings import decode_whole
from shards.terminal.display import printable

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

MAX_BYTES = 256 << 20
"""The most bytes of a member: more is a data set, or a bomb that would fill a worker's memory."""
MEMBER = "member"
"""The column of the members' names."""
NOT_CHOSEN = "not one of `members`"
_SCHEMA = pa.schema([(TEXT, pa.large_string()), (MEMBER, pa.string())])

MemberKind = Literal["file", "folder", "link", "device", "sparse file"]


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of an archive."""

    name: str
    """Its path in the archive; bytes that are not UTF-8 are written as `\\xff`."""
    kind: MemberKind
    size: int
    """Bytes of its content, as the archive states them."""
    read: Callable[[], bytes]
    """Returns its content, until the next member is asked for. Raises MemberError."""


def readable_name(name: str) -> str:
    """Return a member's name as valid text: Python decodes other bytes as surrogates."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_member_columns(source: SourceRecipe, name: str) -> tuple[str, ...]:
    """Check the columns that a recipe names against those of members, and return the types of those to carry.

    Raises:
        SourceError: naming the columns that exist.
    """
    return check_columns(_SCHEMA, source, name, has_text_column=False)


def read_members(documents: Documents, members: Iterator[Member], tell: Callable[[], int]) -> Iterator[TextBatch]:
    """Stream the members of a span as documents, a row each; rows count all members, so that `row` finds one by number.

    Args:
        documents: the first batch, with `MEMBER` as its column.
        members: the members, in order.
        tell: returns how many stored bytes of the span have been read.

    Raises:
        SourceError: a member is malformed and the source's `max_malformed` is 0.
    """
    is_chosen = choose_members(documents.source.members)
    for row, member in enumerate(members):
        if not should_read(member, is_chosen, documents):
            continue
        try:
            documents.add(row, read_document(member, documents.source.encoding), member.name)
        except MemberError as fault:
            where = describe_place(documents.span, row, "member")
            documents.refuse(f"{where}, {printable(member.name)}", fault)
        if documents.is_full:
            yield documents.take(tell())
    yield documents.take(tell())


def should_read(member: Member, is_chosen: Callable[[str], bool], documents: Documents) -> bool:
    """Return whether a member is a file that the recipe asks for; count it if not. Folders are not counted."""
    if member.kind == "folder":
        return False
    if not is_chosen(member.name):
        documents.not_read[NOT_CHOSEN] += 1
    elif member.kind != "file":
        documents.not_read[f"member is a {member.kind}"] += 1
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
        raise MemberError(f"is {member.size:,} bytes long; a document has at most {MAX_BYTES:,}")
    return member.read()


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

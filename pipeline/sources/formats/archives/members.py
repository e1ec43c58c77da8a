"""Members of archives as documents: which are read, which are not and why, and batches of their texts.

A member is only read, never written to a disk, so its name is provenance alone. Each member that is not a document is
counted with its reason. One that the recipe asks for but that cannot be a document (an archive in the archive, an
encrypted or damaged member, one of more than `MAX_BYTES`) is malformed. Memory: a batch and one member.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import wrap_texts
from pipeline.recipe.predicates import parse_keep
from pipeline.sources.base import ALLOW, BATCH_BYTES, MALFORMED, Columns, SourceError, Span, TextBatch
from pipeline.sources.formats.carried_types import types_in_schema
from pipeline.sources.formats.columns import check_predicates, make_batch
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
_SHOWN = 3
_SCHEMA = pa.schema([("text", pa.large_string()), (MEMBER, pa.string())])

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
    read: Callable[[], bytes]
    """Returns its content, until the next member is asked for. Raises MemberError."""


@dataclass(slots=True)
class _Pending:
    """The documents of a batch, and what was not read among them."""

    texts: list[bytes] = field(default_factory=list[bytes])
    names: list[str] = field(default_factory=list[str])
    rows: list[int] = field(default_factory=list[int])
    rejected: Counter[str] = field(default_factory=Counter[str])
    malformed: list[str] = field(default_factory=list[str])
    size: int = 0


def readable_name(name: str) -> str:
    """Return a member's name as valid text: Python decodes other bytes as surrogates."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_columns(source: SourceRecipe, name: str) -> tuple[str, ...]:
    """Check the columns that a recipe names against those of members, and return the types of those to carry.

    Raises:
        SourceError: naming the columns that exist.
    """
    check_predicates(_SCHEMA, parse_keep(source.keep), name)
    return types_in_schema(_SCHEMA, source, name) if source.carry else ()


def read_members(
    source: SourceRecipe, span: Span, members: Iterator[Member], carried: Columns, tell: Callable[[], int]
) -> Iterator[TextBatch]:
    """Stream the members of a span as documents, a row each; rows count all members, so that `row` finds one by number.

    Args:
        source: the source.
        span: the span.
        members: its members, in order.
        carried: the columns to carry.
        tell: returns how many stored bytes of the span have been read.

    Raises:
        SourceError: a member is malformed and the source's `max_malformed` is 0.
    """
    is_chosen = choose_members(source.members)
    pending = _Pending()
    for row, member in enumerate(members):
        if member.kind == "folder":
            continue
        if not is_chosen(member.name):
            pending.rejected[NOT_CHOSEN] += 1
        elif member.kind != "file":
            pending.rejected[f"member is a {member.kind}"] += 1
        else:
            try:
                data = read_document(member, source.encoding)
                pending.texts.append(data)
                pending.names.append(member.name)
                pending.rows.append(row)
                pending.size += len(data)
            except MemberError as fault:
                note_fault(source, describe_member(span, row, member.name), fault, pending.rejected, pending.malformed)
        if pending.size >= BATCH_BYTES:
            yield _to_batch(source, span, pending, carried, tell())
            pending = _Pending()
    yield _to_batch(source, span, pending, carried, tell())


def _to_batch(source: SourceRecipe, span: Span, pending: _Pending, carried: Columns, read_bytes: int) -> TextBatch:
    rows = np.array(pending.rows, np.uint32)
    text = wrap_texts(pa.large_binary(), pending.texts)
    if source.keep or carried:
        table = pa.table({"text": text, MEMBER: pa.array(pending.names, pa.string())})
        batch = make_batch(table, "text", parse_keep(source.keep), rows, carried=(carried, span.name))
    else:
        batch = TextBatch(text, rows)
    for reason, count in pending.rejected.items():
        batch.rejected[reason] = batch.rejected.get(reason, 0) + count
    batch.malformed = pending.malformed
    batch.read_bytes = read_bytes
    return batch


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


def describe_member(span: Span, row: int, name: str) -> str:
    """Return the place of a member, for messages."""
    after = f" after byte {span.start}" if span.kind == "b" and span.start else ""
    number = row + (span.start if span.kind == "m" else 0)
    return f"{span.name}: member {number}{after}, {printable(name)}"


def note_fault(
    source: SourceRecipe, where: str, fault: MemberError, rejected: Counter[str], malformed: list[str]
) -> None:
    """Count a malformed member, and keep some to show.

    Raises:
        SourceError: the source's `max_malformed` is 0.
    """
    if not source.max_malformed:
        raise SourceError(f"{where}: {fault}. Leave it out by `members`{ALLOW}.") from fault
    rejected[MALFORMED] += 1
    if len(malformed) < _SHOWN:
        malformed.append(f"{where}: {fault}")

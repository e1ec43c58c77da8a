"""WebDataset: a tar archive whose neighbouring members of one key, such as `000.txt` and `000.json`, are one sample.

A sample is a document. Its text is the `.txt` member, else the column `text` of the `.json` member, whose columns also
serve `keep` and `carry`. Members with other endings (`.jpg`) are not read, and counted. The columns of JSON are parsed
as those of JSON lines. `__key__` is a column too.
"""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.sources.base import SourceError, Span, TextBatch, describe_place
from pipeline.sources.formats import jsonl
from pipeline.sources.formats.archives.members import (
    Member,
    MemberError,
    check_name,
    choose_members,
    read_content,
    read_document,
    refuse_member,
    should_read,
)
from pipeline.sources.formats.archives.tar_walk import Walk, cut_at_members
from pipeline.sources.formats.byte_io import open_file
from pipeline.sources.formats.columns import take_path
from pipeline.sources.formats.span_reader import SpanReader, in_batches

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe

KEY = "__key__"
_OTHER = "member is neither .txt nor .json of a sample"
_TEXT = ".txt"
"""The name of the column of texts: no column of JSON is called so, as a dot leads into an object."""
_NAME = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)
_HEAD_SAMPLES = 100
_NO_SAMPLE = 'no member ends in .txt or .json. Leave the file out of `paths`, or set format = "tar".'


@dataclass(slots=True)
class _Sample:
    """A sample, with the parts that were read."""

    row: int
    key: str
    text: bytes | None = None
    record: bytes | None = None

    def num_bytes(self) -> int:
        """Return the bytes of its parts."""
        return len(self.text or b"") + len(self.record or b"")


def split_name(name: str) -> tuple[str | None, str]:
    """Return a member's key and ending: the path up to the first dot of its last part, and what follows."""
    match = _NAME.fullmatch(name.removeprefix("./"))
    return (match[1], match[2].lower()) if match else (None, "")


def cut_file(source: SourceRecipe, whole: Span, unit_bytes: int) -> list[Span]:
    """Check the columns in the first samples, and cut an archive between samples; a compressed one is one span.

    Raises:
        SourceError: the first samples lack a column or the text, or the archive is broken.
    """
    if not whole.stop:
        return []
    whole = replace(whole, carried=_check_head(source, whole))
    return cut_at_members(whole, unit_bytes, _find_sample_starts)


def _find_sample_starts(members: Iterator[Member]) -> Iterator[int]:
    for _, group in itertools.groupby(members, key=lambda member: split_name(member.name)[0]):
        yield next(group).offset


def begins_with_sample(span: Span) -> bool:
    """Return whether the first files of a tar archive have one key, and one of them is its `.json`."""
    first = None
    with open_file(span.url) as raw:
        for member in Walk(raw, span).members():
            if member.kind == "file":
                key, ending = split_name(member.name)
                first = first or key
                if key is None or key != first:
                    return False
                if ending == "json":
                    return True
    return False


def read_span(reader: SpanReader) -> Iterator[TextBatch]:
    """Stream the samples of a span as documents, a row each; rows count samples.

    Raises:
        SourceError: a sample is malformed and the source's `max_malformed` is 0, or the archive is broken.
    """
    with reader.open() as raw:
        for samples in in_batches(_read_samples(reader, Walk(raw, reader.span).members()), _Sample.num_bytes):
            # The text is the member's, else the record's column.
            table, samples = _parse(reader, samples)
            column: Any = take_path(table, reader.source.text_column)
            texts = [column[row].as_py() if sample.text is None else sample.text for row, sample in enumerate(samples)]
            table = table.append_column(_TEXT, pa.array(texts, pa.large_binary()))
            yield reader.make_batch(table, np.array([sample.row for sample in samples], np.uint32), _TEXT)


def _read_samples(reader: SpanReader, members: Iterator[Member]) -> Iterator[_Sample]:
    """Yield the samples that have a text or a record; count the members that are not read."""
    is_chosen = choose_members(reader.source.members)
    for row, (key, group) in enumerate(itertools.groupby(members, key=lambda member: split_name(member.name)[0])):
        # Members of one key are neighbours: a sample is whole when the next key begins.
        sample = _Sample(row, key or "")
        for member in group:
            if not should_read(member, is_chosen, reader):
                continue
            ending = split_name(member.name)[1]
            if ending not in ("txt", "json"):
                reader.not_read[_OTHER] += 1
                continue
            try:
                _read_part(sample, member, ending, reader.source.encoding)
            except MemberError as fault:
                refuse_member(reader, describe_place(reader.span, row, "sample"), member.name, fault)
                break
        else:
            if sample.text is not None or sample.record is not None:
                yield sample


def _read_part(sample: _Sample, member: Member, ending: str, encoding: str) -> None:
    """Read the text or the record of a sample.

    Raises:
        MemberError: it cannot be read, or the sample has it already.
    """
    if (sample.text if ending == "txt" else sample.record) is not None:
        raise MemberError("is the second of its key and ending")
    if ending == "txt":
        sample.text = read_document(member, encoding)
        return
    check_name(member.name)
    sample.record = read_content(member)


def _to_line(sample: _Sample) -> bytes:
    """Return a sample's record as a line of JSON with its key; line ends in JSON stand only between its parts."""
    if sample.record is None:
        return json.dumps({KEY: sample.key}).encode()
    # The key is put in front of the record's own columns, without parsing them.
    line = sample.record.removeprefix(codecs.BOM_UTF8).replace(b"\n", b" ").replace(b"\r", b" ").strip()
    if not line.startswith(b"{"):
        return line or b"null"
    rest = line[1:].lstrip()
    comma = b"" if rest.startswith(b"}") else b", "
    return b'{"%s": %s%s%s' % (KEY.encode(), json.dumps(sample.key).encode(), comma, rest)


def _parse(reader: SpanReader, samples: list[_Sample]) -> tuple[pa.Table, list[_Sample]]:
    """Return the columns of samples, and the samples whose records are well-formed.

    Raises:
        SourceError: a record is malformed and the source's `max_malformed` is 0.
    """
    options = jsonl.parse_options(reader.source, reader.span.name, reader.carried)
    table, faults = jsonl.parse_lines(b"\n".join(map(_to_line, samples)), options, reader.span, 0)
    for number, fault in faults.items():
        sample = samples[number]
        refuse_member(reader, describe_place(reader.span, sample.row, "sample"), f"{sample.key}.json", fault)
    return table, [sample for number, sample in enumerate(samples) if number not in faults]


def _check_head(source: SourceRecipe, whole: Span) -> tuple[str, ...]:
    """Check that the first samples have what the recipe names, and return the types of the columns to carry."""
    reader = SpanReader(source, whole)
    with open_file(whole.url) as raw:
        found = itertools.islice(_read_samples(reader, Walk(raw, whole).members()), _HEAD_SAMPLES)
        samples = next(in_batches(found, _Sample.num_bytes))
    if not samples:
        raise SourceError(f"{whole.name}: {_NO_SAMPLE}")
    _, samples = _parse(reader, samples)
    records = [json.loads(_to_line(sample).decode("utf-8", "replace")) for sample in samples]
    # A text column is needed only if no sample has a text of its own.
    needs_column = all(sample.text is None for sample in samples)
    columns = [source.text_column, *source.keep] if needs_column else [*source.keep]
    try:
        return jsonl.check_records(source, records, columns, whole.name)
    except SourceError as error:
        raise SourceError(f'{error} It is read as WebDataset; format = "tar" makes each member a document.') from error

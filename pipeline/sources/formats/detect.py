"""The format of a source's file with `format = "auto"`: given by its name, else by its first bytes; never guessed.

The name decides for the endings of `pipeline.sources.formats.contract`, also with a compression suffix. Of other files
the head is read and decompressed. Parquet, Arrow IPC, JSON lines, and JSON arrays in files whose ending says so or that
have none, are recognised. Other text is one document per file, like source code and Markdown. Other JSON, CSV without
an ending, binary data, and compressed text without an ending such as `.md` are refused, because a whole data set would
become one document.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from pathlib import Path
from typing import Any

from pipeline.sources.base import File, SourceError
from pipeline.sources.formats.byte_io import COMPRESSION, HEAD_BYTES, compression_of, open_decompressed, open_file
from pipeline.sources.formats.contract import FORMATS
from pipeline.sources.formats.encodings import UTF8, decode_whole, refuse_wide
from shards.errors import shell_command

_COMPRESSED = r"(\.(gz|zst|bz2|xz))?"
PACKED = (
    ("a tar archive", rf"\.(tar{_COMPRESSED}|tgz|tbz2?|txz|tzst)", b"ustar", 257, "tar -xf {name} -C FOLDER"),
    ("a zip archive", r"\.zip", b"PK\x03\x04", 0, "unzip {name} -d FOLDER"),
    ("a 7z archive", r"\.7z", b"7z\xbc\xaf\x27\x1c", 0, "7z x {name} -oFOLDER"),
    ("a web crawl (WARC)", rf"\.(warc|wet|wat){_COMPRESSED}", b"WARC/1.", 0, "python warc_to_jsonl.py {name}"),
    ("compressed by xz", r"\.xz", b"\xfd7zXZ\x00", 0, "xz -d {name}"),
)
"""Archives, crawls and compressions that are not read: what each is, the pattern of their names' ends, first bytes and
where these are, and what to do with the file `{name}`; docs/data.md has `warc_to_jsonl.py`."""
_PACKED_NAME = re.compile(f"({'|'.join(endings for _, endings, *_ in PACKED)})$", re.IGNORECASE)
_BY_NAME = {ending: name for name, format_ in FORMATS.items() for ending in format_.endings}
_BY_MAGIC = {magic: name for name, format_ in FORMATS.items() for magic in format_.magic}
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "LZ4",
    b"%PDF-": "PDF",
    b"\x89PNG": "an image (PNG)",
    b"\xff\xd8\xff": "an image (JPEG)",
    b"GIF8": "an image (GIF)",
}
_AS_FILES = 'or say format = "file" to make each file one document'
_JUDGED_LINES = 20
_LEAST_TABLE_LINES = 3
"""A file is considered a table if this many of its first lines have the same number of separators."""


def ending_of(name: str) -> str:
    """Return the suffix by which a format is detected, without that of a compression: `.jsonl` for `A.JSONL.gz`."""
    base, ending = os.path.splitext(name)
    return (os.path.splitext(base)[1] if ending in COMPRESSION else ending).lower()


def format_of_name(name: str) -> str | None:
    """Return the format that a file's name gives; None if it gives none."""
    return _BY_NAME.get(ending_of(name))


def describe_packed(name: str, head: bytes = b"") -> str | None:
    """Return what format an archive, a crawl or a file in xz has, and how to unpack it; None for other files.

    Args:
        name: the file's name.
        head: its first bytes, if they were read.
    """
    if not head and not _PACKED_NAME.search(name):
        return None  # one search for each of many files
    for what, endings, magic, magic_at, remedy in PACKED:
        if re.search(f"{endings}$", name.lower()) or head.startswith(magic, magic_at):
            command = remedy.format(name=shell_command(Path(name)))
            return f"is {what}, which is not read. Unpack it first, `{command}`, and name the files that it gives"
    return None


def detect_format(file: File, encoding: str, head: bytes | None = None) -> str:
    """Return a file's format, by its name in `FORMATS`.

    Args:
        file: the file, whose name may tell the format.
        encoding: of its text.
        head: its first `HEAD_BYTES`, decompressed, if they were read.

    Raises:
        SourceError: the content cannot be one document; the message has the remedy.
        OSError: the file cannot be read or decompressed.
    """
    # The name decides; then the first bytes; then whether the text looks like JSON lines or an array.
    name = file.name
    ending = ending_of(name)
    if found := _BY_NAME.get(ending):
        return found
    head = read_head(file) if head is None else head
    is_cut = len(head) == HEAD_BYTES
    if found := next((found for magic, found in _BY_MAGIC.items() if head.startswith(magic)), None):
        return found
    # From here on it is text, or refused.
    if packed := describe_packed(name, head):
        raise SourceError(f"{name}: {packed}.")
    if kind := next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None):
        raise _not_text(name, kind)
    if encoding == UTF8:
        refuse_wide(head, name)
    head = decode_whole(head, encoding)
    if is_binary(head):
        raise _not_text(name, "binary data")
    if _is_json_lines(head, is_cut):
        return "jsonl"
    # A name that says JSON must hold records; other text is one document, unless it looks like a data set.
    is_json = ending.startswith(".json")
    if is_json and not head.strip():
        return "jsonl"  # of no record; the file may be empty because nothing was found to put into it
    if (is_json and head.lstrip().startswith(b"[")) or (not ending and re.match(rb'\s*\[\s*\{\s*"', head)):
        return "json"
    if is_json:
        raise SourceError(
            f"{name}: holds JSON that is neither one object a line nor one array of objects. Write it as one of these "
            f"(`jq -c .` writes an object on one line, `jq .KEY` the array that is its value), {_AS_FILES}."
        )
    if not ending and _is_table(head):
        raise SourceError(
            f'{name}: looks like CSV or TSV, but its name does not say so. Set `format` to "csv" (and `delimiter`, if '
            f"it is not a comma), {_AS_FILES}."
        )
    if not ending and compression_of(name) and head:
        raise SourceError(
            f'{name}: compressed text whose name does not give its format. Set `format`: "text" with a `separator`, '
            'or "file" to make each file one document.'
        )
    return "file"


def read_head(file: File, size: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file by which its format is detected, decompressed if its name tells so."""
    with open_file(file.url, file.version) as raw:
        return open_decompressed(raw, file.name).read(size)


def _not_text(name: str, kind: str) -> SourceError:
    if kind in ("gzip", "Zstandard", "bzip2"):
        endings = ", ".join(COMPRESSION)
        return SourceError(
            f"{name}: is compressed ({kind}), but its name does not say so. Rename it: {endings} are read."
        )
    return SourceError(
        f"{name}: holds {kind}, not text. Leave it out of `paths`, convert it to parquet or JSON lines, {_AS_FILES}."
    )


def is_binary(head: bytes) -> bool:
    """Return whether bytes are of no format of text: many are NUL, or some are NUL and the rest is not UTF-8."""
    nulls = head.count(0)
    if not nulls:
        return False
    if nulls * 10 > len(head):
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # a character may be cut at the end
    except UnicodeDecodeError:
        return True
    return False


def _is_json_lines(head: bytes, is_cut: bool) -> bool:
    """Return whether the format is JSON lines: most of the first lines are JSON objects, but for one that is cut."""
    if b"{" not in head:
        return False
    lines = [line for line in head.split(b"\n") if line.strip()]
    if is_cut and len(lines) == 1:
        return bool(re.match(rb'\s*\{\s*"', head))  # one line, longer than the head
    judged = (lines[:-1] if is_cut else lines)[:_JUDGED_LINES]
    return 2 * sum(isinstance(_parse(line), dict) for line in judged) > len(judged)


def _parse(line: bytes) -> Any:
    if not line.lstrip(codecs.BOM_UTF8 + b" \t\r").startswith(b"{"):
        return None  # no object; to find that out by an exception takes ten times as long
    try:
        return json.loads(line.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        return None


def _is_table(head: bytes) -> bool:
    lines = head.split(b"\n")[:-1][:_JUDGED_LINES]
    for separator, least in ((b"\t", 1), (b",", 2), (b"|", 2)):
        counts = {line.count(separator) for line in lines}
        if len(lines) >= _LEAST_TABLE_LINES and len(counts) == 1 and counts.pop() >= least:
            return True
    return False

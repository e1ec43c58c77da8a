"""The format of a source's file with `format = "auto"`: given by its name, else by its first bytes; never guessed.

The name decides for the endings of `pipeline.sources.formats.contract`, also with a compression suffix. Of other files
the head is read and decompressed. Parquet, Arrow IPC, JSON lines, and JSON arrays in files whose ending says so or that
have none, are recognised. Other text is one document per file, like source code and Markdown. Other JSON, CSV without
an ending, binary data, and compressed text without an ending such as `.md` are refused, because a whole data set would
become one document.
"""

import codecs
import json
import os
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from pipeline.sources.base import File, SourceError, Span
from pipeline.sources.formats.byte_io import (
    BROKEN_FILE_ERRORS,
    COMPRESSION,
    HEAD_BYTES,
    compression_of,
    is_local,
    open_decompressed,
    open_file,
)
from pipeline.sources.formats.contract import FORMATS
from pipeline.sources.formats.encodings import (
    LFS_POINTER,
    LFS_REMEDY,
    UTF8,
    decode_whole,
    find_wide_encoding,
    refuse_wide,
)
from shards.errors import remedy_of, shell_command

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
_CODEC_MAGIC = {"gzip": (b"\x1f\x8b",), "zstd": (b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"), "bz2": (b"BZh",)}
_MAGIC = {magics[0]: codec for codec, magics in _CODEC_MAGIC.items()} | {
    b"\x04\x22\x4d\x18": "LZ4",
    b"%PDF-": "PDF",
    b"%!PS": "PostScript",
    b"{\\rtf": "RTF",
    b"\x89PNG": "an image (PNG)",
    b"\xff\xd8\xff": "an image (JPEG)",
    b"GIF8": "an image (GIF)",
}
_PAGE = "a page, such as a server's error: download the file again"
STAND_INS = {
    LFS_POINTER: LFS_REMEDY,
    b"-----BEGIN PGP MESSAGE": "data encrypted by PGP: decrypt it",
    b"Salted__": "data encrypted by OpenSSL: decrypt it",
    b"age-encryption.org": "data encrypted by age: decrypt it",
    b"PARE": "encrypted Parquet, which is not read: decrypt it",
    b"<!DOCTYPE": _PAGE,
    b"<!doctype": _PAGE,
    b"<html": _PAGE,
    b"<?xml": _PAGE,
}
"""First bytes of what is found in the place of a file: what it is, and the remedy."""
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


def describe_packed(file: File | Span, head: bytes = b"") -> str | None:
    """Return what format an archive, a crawl or a file in xz has, and how to unpack it; None for other files.

    Args:
        file: the file.
        head: its first bytes, if they were read.
    """
    if not head and not _PACKED_NAME.search(file.name):
        return None  # one search for each of many files
    for what, endings, magic, magic_at, remedy in PACKED:
        if re.search(f"{endings}$", file.name.lower()) or head.startswith(magic, magic_at):
            command = remedy.format(name=shell_command(Path(file.url if is_local(file.url) else file.name)))
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
    if head is None:
        with open_file(file) as raw:
            head = open_decompressed(raw, name).read(HEAD_BYTES)
    is_cut = len(head) == HEAD_BYTES
    if found := look_up(head, _BY_MAGIC):
        return found
    # From here on it is text, or refused.
    if packed := describe_packed(file, head):
        raise SourceError(f"{name}: {packed}.")
    if kind := look_up(head, _MAGIC):
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
            f"{name}: holds JSON that is neither one object per line nor one array of objects. Write it as one of "
            f"these (`jq -c .` writes an object on one line, `jq .KEY` the array that is its value), {_AS_FILES}."
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


def explain_unread(file: File | Span, error: BaseException, format_: str = "auto") -> str:
    """Return why a file cannot be read, by its stored first bytes; empty if they fit its name, or cannot be read again.

    Args:
        file: the file.
        error: what was found while it was read.
        format_: the source's key.
    """
    name = file.name
    if remedy_of(error) or not (is_local(file.url) or isinstance(error, ValueError)):
        return ""  # what a network has lost is not asked for again
    try:
        with open_file(file) as raw:
            head = raw.read(HEAD_BYTES)
    except BROKEN_FILE_ERRORS:
        return ""
    codec, format_ = compression_of(name), (format_of_name(name) or "") if format_ == "auto" else format_
    own = _CODEC_MAGIC[codec] if codec else FORMATS[format_].magic if format_ else tuple(_BY_MAGIC)
    if not head:
        return "is empty. Restore it, or leave it out" if own and format_ else ""
    if head.startswith(own) or head[1:].startswith(own):  # the magic of a frame of Zstandard to skip has a number first
        path = shell_command(Path(name))
        reasons = {
            # The library's own limit.
            "too much memory": "its Zstandard window would take over 128 MiB of memory, the most that is read. "
            f"Recompress it: zstd -d --long=31 -c {path} | zstd -o NEW.zst",
            "Dictionary mismatch": "needs a dictionary of Zstandard, which is not read. Decompress it: zstd -d -D "
            "DICTIONARY",
            "Not a gzipped file": "has bytes after its end that are not gzip. Rewrite it without them: gzip -dc "
            f"{path} | gzip > NEW.gz",
        }
        return next((why for said, why in reasons.items() if said in str(error)), "")
    if what := look_up(head, STAND_INS):
        is_text = not codec and ending_of(name) != ".json" and "keep" not in FORMATS.get(format_, FORMATS["file"]).keys
        return "" if is_text and what == _PAGE else f"holds {what}"
    if not codec and not format_:
        return ""  # `detect_format` says it
    if kind := look_up(head, _BY_MAGIC | _MAGIC):
        return f"holds {kind}. Correct its name or `format`"
    if packed := describe_packed(file, head):
        return packed
    if own:
        return f"is not {codec or format_}: it begins with {head[:16]!r}. Correct its name or `format`, or restore it"
    is_text = find_wide_encoding(head) or not is_binary(head)
    return "" if is_text else "holds binary data, not text. Correct its name or `format`"


def look_up(head: bytes, table: Mapping[bytes, str]) -> str:
    """Return what a table of first bytes says of a file; empty if nothing."""
    return next((what for mark, what in table.items() if head.startswith(mark)), "")


def _not_text(name: str, kind: str) -> SourceError:
    if kind in COMPRESSION.values():
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
    return 2 * sum(parse_object(line) is not None for line in judged) > len(judged)


def parse_object(line: bytes) -> dict[str, Any] | None:
    """Return the object on a line of JSON, with whole numbers of any length; None if there is none."""
    if not line.lstrip(codecs.BOM_UTF8 + b" \t\r").startswith(b"{"):
        return None  # to find that out by an exception takes ten times as long
    try:
        return json.loads(line.decode("utf-8-sig", "replace"), parse_int=Decimal)
    except (ValueError, RecursionError):
        return None


def _is_table(head: bytes) -> bool:
    lines = head.split(b"\n")[:-1][:_JUDGED_LINES]
    for separator, least in ((b"\t", 1), (b",", 2), (b"|", 2)):
        counts = {line.count(separator) for line in lines}
        if len(lines) >= _LEAST_TABLE_LINES and len(counts) == 1 and counts.pop() >= least:
            return True
    return False

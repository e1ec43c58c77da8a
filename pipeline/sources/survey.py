"""A survey of files that no recipe describes yet: which hold text, and by which keys a source reads them.

At most `MOST_LOOKED_AT` files are read: up to `WHOLE_BYTES` whole, of longer ones the head and tail, of columnar and
compressed ones the footer or head. The rest are taken to be like those of the same folder and ending, but if one of
these is not UTF-8, all are read. UTF-16 and UTF-32 are recognised; other files that are not UTF-8 get a source with the
encoding `GUESSED`, or `UNKNOWN` if their text looks wrong in that.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import codecs
import io
import itertools
import json
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from glob import escape
from operator import attrgetter
from typing import Any, cast

import pyarrow as pa

from pipeline.sources.base import File, SourceError
from pipeline.sources.files import expand_glob, name_folder
from pipeline.sources.formats.arrow_ipc import is_file
from pipeline.sources.formats.byte_io import BROKEN_FILE_ERRORS, HEAD_BYTES, compression_of, open_file
from pipeline.sources.formats.csv_table import OLD_MAC, Form, QuotedFields
from pipeline.sources.formats.detect import detect_format, explain_unread, find_stand_in, is_binary, read_head
from pipeline.sources.formats.encodings import UTF8, find_wide_encoding
from pipeline.sources.formats.parquet import open_parquet
from pipeline.sources.globs import BROKEN, UNREADABLE
from shards.errors import InputError, text_of

MOST_LOOKED_AT = 4096
"""Files that a survey reads: a second for short ones."""
MOST_FOLDERS = 12
"""A folder with more folders in it is one source for each format, not one for each folder."""
FEW_FILES = 10
"""A source of fewer text files is cut by a separator, because validation takes whole documents."""
LONG_BYTES, WHOLE_BYTES = 1 << 16, 1 << 20
"""A text file as long, among few or among more, is cut by a separator of its own; a longer file is not read whole."""
_LONG_HEAD_BYTES = 1 << 22
_RECORDS = 64
_SAMPLED_FILES = 16
_MARK = "<|endoftext|>"
_SEPARATORS = (_MARK, "\n\n", "\r\n\r\n", "\r\n", "\n")
_RECORD_START = re.compile(r"[\s,\[]*(?=\{)")
_ENDING = re.compile(r"(?<=[^/])\.\w*[A-Za-z]\w*(\.(gz|zst|bz2))?$")
_HTML = re.compile(r"(?i)\.x?html?$")
_IN_LIST = "[]"
_name = attrgetter("name")
GUESSED = "cp1252"
"""The encoding of files that are not UTF-8 and look right in it. A guess: whoever writes a recipe says so."""
UNKNOWN = "unknown"
"""Stands for the encoding of the others."""
_WESTERN = re.compile("[À-ÿ‘’“”–—…«»\xa0¡¿©°·€]")

Keys = dict[str, Any]
"""Keys of a source and their values, as a recipe has them."""
Texts = dict[str, list[tuple[str, str]]]
"""Texts of the first documents, each with the name of its file, by column; the column of files without any is ""."""
Found = tuple[Keys, list[File], Texts]
"""A source of a survey."""


def look_at(file: File, *, whole_below: int = 0) -> tuple[Keys, Texts]:
    """Return the keys by which a source reads a file, and its first texts.

    Args:
        file: the file.
        whole_below: a text file of fewer bytes is one document; a separator cuts others.

    Raises:
        SourceError: the file holds no text; the message begins with its name and the reason.
        OSError, ValueError, EOFError: it cannot be read.
    """
    head = read_head(file)
    encoding = find_wide_encoding(head)
    # A recipe gives the format of compressed text whose name does not, so the name counts without its `.gz`.
    named = replace(file, name=os.path.splitext(file.name)[0]) if compression_of(file.name) else file
    keys: Keys = {"format": detect_format(named, encoding or UTF8, head)} | ({"encoding": encoding} if encoding else {})
    if keys["format"] in ("jsonl", "json", "csv") and (what := find_stand_in(head)):
        raise SourceError(f"{file.name}: holds {what}")
    if keys["format"] in ("parquet", "arrow"):
        records = _list_rows(file, keys["format"])
    else:
        if not encoding and is_binary(head):
            raise SourceError(f"{file.name}: binary data")
        if keys["format"] in ("jsonl", "json") and b"\n" not in head:  # a record may be longer than the head
            head = read_head(file, _LONG_HEAD_BYTES)
        is_text, tail = keys["format"] in ("text", "file"), b""
        try:
            text = codecs.getincrementaldecoder(encoding or "utf-8-sig")().decode(head, len(head) < HEAD_BYTES)
            if not encoding and not compression_of(file.name):
                tail = _read_rest(file)
                tail.decode()
        except UnicodeDecodeError:
            if encoding:
                raise
            text = head.decode(GUESSED, "replace")
            keys["encoding"] = GUESSED if is_western(text + tail.decode(GUESSED, "replace")) else UNKNOWN
        if not text.strip():
            raise SourceError(f"{file.name}: empty")
        if is_text:
            if file.stored_bytes < whole_below and _MARK not in text:
                return keys | {"format": "file"}, {"": [(file.name, text)]}
            return _cut(keys, [(file.name, text)])
        if keys["format"] == "csv":
            delimiter, data = max(",;\t|", key=text.partition("\n")[0].count), text.encode()
            quoted = QuotedFields(Form(delimiter), data)
            is_open = len(head) < HEAD_BYTES and any(after > len(data) for _, after in quoted.places[-1:])
            keys |= {"delimiter": delimiter} | ({"quote": ""} if is_open or quoted.judge(data)[2] else {})
            if "\r" in text.partition("\n")[0].rstrip("\r"):
                raise SourceError(f"{file.name}: {OLD_MAC}")
            lines = Form(delimiter, keys.get("quote")).read(io.StringIO(text, newline=""))
            names = next(lines, [])
            records = (dict(zip(names, line, strict=False)) for line in lines)
        else:
            records = _list_objects(text)
    texts: Texts = defaultdict(list)
    for record in itertools.islice(records, _RECORDS):
        _collect(texts, file.name, "", record)
    column = max(texts, key=partial(count_characters, texts), default="")
    name, in_list, _ = column.partition(_IN_LIST)
    if in_list or not column:
        why = (
            f"each record holds a list, {name!r}; write one text per record first, as docs/data.md does for chats"
            if column
            else "no column of text"
        )
        raise SourceError(f"{file.name}: {why}")
    return keys | {"text": column}, texts


def _cut(keys: Keys, texts: list[tuple[str, str]]) -> tuple[Keys, Texts]:
    """Return the keys by which a source cuts whole texts, and the first documents of each."""
    most = (found for found in _SEPARATORS if 2 * sum(found in text for _, text in texts) >= len(texts))
    separator = next(most, "\n")
    documents = [(file, part) for file, text in texts for part in text.split(separator)[:_RECORDS]]
    return keys | {"format": "text", "separator": separator}, {"": documents}


def count_characters(texts: Texts, column: str) -> int:
    """Return the characters of the texts that a survey has of a column."""
    return sum(len(text) for _, text in texts[column])


def is_western(text: str) -> bool:
    """Return whether text that was decoded as `GUESSED` looks right: few letters and quotes beyond ASCII, no UTF-8."""
    odd = re.sub("[\0-\x7f]", "", text)
    is_few = len(odd) <= min(len(text) // 4, 2 * len(_WESTERN.findall(odd)))
    if not is_few or "\ufffd" in odd:
        return False
    utf8 = re.sub("[\0-\x7f]", "", text.encode(GUESSED).decode("utf-8", "ignore"))
    return len(utf8) <= len(odd) // 20  # two letters may look like one of UTF-8


def _read_rest(file: File) -> bytes:
    """Return the bytes of a file after its head, of a long file the last, without those of a character that is cut."""
    if file.stored_bytes <= HEAD_BYTES:
        return b""
    with open_file(file.url, file.version) as raw:
        raw.seek(HEAD_BYTES if file.stored_bytes <= WHOLE_BYTES else file.stored_bytes - HEAD_BYTES)
        return raw.read(WHOLE_BYTES).lstrip(bytes(range(0x80, 0xC0)))


def _list_rows(file: File, format_: str) -> Iterator[Any]:
    """Yield the first rows of a columnar file."""
    if format_ == "parquet":
        with open_parquet(file.url, file.version) as (opened, _, _):
            for batch in opened.iter_batches(_RECORDS):
                yield from _list_texts(batch)
        return
    with open_file(file.url, file.version) as raw:
        source: Any = raw
        for batch in [pa.ipc.open_file(source).get_batch(0)] if is_file(raw) else pa.ipc.open_stream(source):
            yield from _list_texts(batch.slice(0, _RECORDS))


def _list_texts(batch: pa.RecordBatch) -> list[Any]:
    """Return rows without dates and times, of which Python has not all."""
    table = pa.Table.from_batches([batch])
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table.select([i for i, kind in enumerate(table.schema.types) if not pa.types.is_temporal(kind)]).to_pylist()


def _list_objects(text: str) -> Iterator[Any]:
    """Yield the JSON objects at the beginning of a text, on lines or in an array."""
    end, decoder = 0, json.JSONDecoder()
    while start := _RECORD_START.match(text, end):
        try:
            record, end = decoder.raw_decode(text, start.end())
        except (ValueError, RecursionError):
            return  # the head ends here, or a build will say what is malformed
        yield record


def _collect(texts: Texts, file: str, name: str, value: Any) -> None:
    """Add the texts in a value of a record, by column."""
    if isinstance(value, str):
        texts[name].append((file, value))
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            _collect(texts, file, name + _IN_LIST, item)
    elif isinstance(value, dict):
        for key, item in cast("Keys", value).items():
            _collect(texts, file, f"{name}.{key}".lstrip("."), item)


def survey(places: list[str], left_out: dict[str, str]) -> list[Found]:
    """Survey files, and return the sources that read those with text.

    Args:
        places: folders, files and globs.
        left_out: the names of files and folders that no source reads are added, with the reason of each.

    Raises:
        InputError: a place is not there, cannot be listed, or lies in another one.
    """
    cells = [cell for place in dict.fromkeys(places) for cell in _list_cells(place, left_out)]
    listed = Counter(file.name for *_, files in cells for file in files)
    if twice := next((name for name in listed if listed[name] > 1), ""):
        raise InputError(f"{twice}: lies in two of the given places; name only one of them")
    step = max(1, -(-len(listed) // MOST_LOOKED_AT))
    sources: dict[str, Found] = {}
    for label, pattern, files in cells:
        parts: dict[str, list[File]] = defaultdict(list)
        looked = files[::step]
        for file in looked:
            try:
                keys, texts = look_at(file, whole_below=WHOLE_BYTES if len(files) >= FEW_FILES else LONG_BYTES)
            except BROKEN_FILE_ERRORS as error:
                said = UNREADABLE if isinstance(error, PermissionError) else ""
                said = said or explain_unread(file, error) or text_of(error)
                # Without a verb, it is true of one file and of many.
                said = said.removeprefix(f"{file.name}: ").removeprefix("holds ")
                left_out[file.name] = re.split(r"\. |, which", said)[0]
                continue
            if keys.get("encoding") in (GUESSED, UNKNOWN) and len(looked) < len(files):
                looked += sorted({*files} - {*looked}, key=_name)  # `plan` refuses what a sample misses
            key = f"{label} {keys} {compression_of(file.name)} {_HTML.search(file.name) is not None}"
            parts[key].append(file)
            *_, shown = sources.setdefault(
                key, ({"name": label, "paths": [], "exclude": [], **keys}, [], defaultdict(list))
            )
            for column in texts if len(parts[key]) <= _SAMPLED_FILES else ():
                shown[column] += texts[column]
        # The glob is for the keys of most files; the others are left out of it, and named.
        for place, (key, own) in enumerate(sorted(parts.items(), key=lambda part: -len(part[1]))):
            others = {*looked} - {*own}
            table, read, _ = sources[key]
            table["paths"] += sorted(escape(file.name) for file in own) if place else [pattern]
            table["exclude"] += [] if place else _list_unread(left_out, pattern)
            table["exclude"] += [] if place else sorted(escape(file.name) for file in others)
            read += own if place else [file for file in files if file not in others]
    for key, (table, own, shown) in [*sources.items()]:
        if table["format"] == "file" and len(own) < FEW_FILES and table.get("encoding") != UNKNOWN:
            table, shown = _cut(table, shown[""])
            sources[key] = table, own, shown
            if sum(bool(text.strip()) for _, text in shown[""]) < 2:
                left_out |= {file.name: "one document; a source needs two" for file in own}
                del sources[key]
    return [*sources.values()]


def _list_unread(left_out: dict[str, str], pattern: str) -> list[str]:
    """Return globs of the files that a pattern matches in folders that are left out."""
    folder, _, ending = pattern.partition("/**/*")
    paths = (escape(path) for path in left_out if ending and not posixpath.basename(path).startswith("."))
    globs = [f"{path}/**/*{ending}" for path in paths if path.startswith(f"{folder}/")]
    return [glob for glob in globs if expand_glob(glob, {})]


def _list_cells(place: str, left_out: dict[str, str]) -> list[tuple[str, str, list[File]]]:
    """Return a name, a glob and the files that it matches, for each part of a folder or for a file or a glob."""
    root = os.path.abspath(place)
    is_folder = os.path.isdir(root)
    place = escape(place) if os.path.isfile(root) else place
    try:
        files = sorted(_walk(root, left_out), key=_name) if is_folder else expand_glob(place, left_out)
    except (*BROKEN_FILE_ERRORS, ImportError) as error:
        raise InputError(f"{place}: cannot be listed: {text_of(error)}") from error
    if not files and not os.path.exists(root):
        raise InputError(f"{place}: no such file or folder")
    name = posixpath.basename(root).partition(".")[0]
    if not is_folder:
        return [(name, place, files)]
    folders = [file.name[len(root) :].split("/")[1:-1] for file in files]
    is_deep = len({below[0] for below in folders if below}) > MOST_FOLDERS
    cells: dict[tuple[str, str], list[File]] = defaultdict(list)
    for file, below in zip(files, folders, strict=True):
        label = "" if is_deep else "".join(below[:1])
        glob = posixpath.join(escape(root), escape(label), "**" if label or is_deep else "", "*")
        ending = _ENDING.search(file.name)
        cells[label or name, glob + ending[0] if ending else escape(file.name)].append(file)
    return [(label, glob, own) for (label, glob), own in sorted(cells.items())]


def _walk(root: str, left_out: dict[str, str]) -> Iterator[File]:
    """Yield the files of a folder and of those below, without following links to folders."""
    for folder, below, names in os.walk(root, onerror=lambda error: left_out.update({error.filename: UNREADABLE})):
        if what := name_folder(folder):
            left_out[folder] = what
            below.clear()
            continue
        for path in [os.path.join(folder, name) for name in below + names]:
            if os.path.islink(path) and not os.path.exists(path):
                left_out[path] = BROKEN
            elif os.path.islink(path) and os.path.isdir(path):
                left_out[path] = "a link, not followed; name its target if that is elsewhere"
        left_out.update({os.path.join(folder, name): "hidden folder" for name in below if name.startswith(".")})
        below[:] = [name for name in below if not name.startswith(".")]
        yield from expand_glob(f"{escape(folder)}/*", left_out)

"""A survey of files that no recipe describes yet: which hold text, and by which keys a source reads them.

A file's kind is decided by its content: like files of a folder are one source, whatever their endings. Text is decoded
to its end, records by their beginning. A file is a document, unless lines that are marks divide it; few long files are
cut at blank lines. UTF-16 and UTF-32 are recognised; of other files that are not UTF-8 the encoding is guessed, which
whoever writes a recipe says. Every file is looked at: some thousand a second.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import codecs
import contextlib
import io
import itertools
import json
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from glob import escape
from typing import Any, cast

import pyarrow as pa

from pipeline.recipe.key_values import MOST_NAMES, normal_encoding
from pipeline.sources.base import File, SourceError
from pipeline.sources.files import expand_glob
from pipeline.sources.formats.arrow_ipc import is_file
from pipeline.sources.formats.byte_io import (
    BROKEN_FILE_ERRORS,
    HEAD_BYTES,
    compression_of,
    open_decompressed,
    open_file,
)
from pipeline.sources.formats.csv_table import OLD_MAC, Form, QuotedFields
from pipeline.sources.formats.detect import (
    STAND_INS,
    detect_format,
    ending_of,
    explain_unread,
    is_binary,
    look_up,
    parse_object,
)
from pipeline.sources.formats.encodings import UTF8, find_wide_encoding
from pipeline.sources.formats.html_page import MOST_PAGE_BYTES, READ_AS, find_encoding
from pipeline.sources.formats.parquet import open_parquet
from pipeline.sources.formats.whole_file import join_cells
from pipeline.sources.globs import AGAIN
from pipeline.sources.marks import find_copies, find_marked
from shards.audit.not_text import CHATS, KINDS, MAIL, MOST_CHARACTERS
from shards.audit.split_names import list_above
from shards.errors import InputError, MissingExtraError, check_extra, text_of

MOST_FOLDERS = 12
"""A folder with more folders in it is one source for each kind of file, not one for each folder."""
FEW_DOCUMENTS = 10
"""A source of fewer text files is cut at blank lines, because validation takes whole documents."""
JOIN_BYTES = 1 << 15
"""The least document of a file that is cut at blank lines; a file shorter than two of them is not cut."""
_MOST_DECODED = 1 << 30
_BEGINNING_BYTES = 1 << 23
"""Of a text, where marks between documents are looked for; of records, what is decoded."""
_LEAST_PARTS, _LARGEST_PART = 20, 0.1
_MARK = re.compile(r"(?m)^(<\|\w+\|>|</s>|<(?:eos|EOS|sep|SEP)>|\[(?:EOS|SEP)\]|%|\f)(?=\r?$)")
_MAILBOX = re.compile(r"From \S+ .*\d{4}\r?\n[A-Z][\w-]*: ")
_RECORDS = 64
_FEW_PATHS = 4
_RECORD_START = re.compile(r"[\s,\[]*(?=\{)")
_ENDING = re.compile(r"(?<=[^/])\.\w*[A-Za-z]\w*(\.(gz|zst|bz2))?$")
_LETTERS = 1 << 10
IN_LIST = "[]"
"""After the name of a column of lists, in the name of what is in these."""
_MOST_OF_A_HEADER = 40
"""Characters; a longer name of a column looks like text."""
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?")
_PICTURE = re.compile(
    r"(?s)\s*(?:(?:<(?:!--.{0,4999}?--|\?.{0,4999}?\?|!\w[^>\[]*(?:\[.{0,4999}?\]\s*)?)>\s*)*+<svg\b|/\* XPM \*/)"
)
"""How a picture that is a text begins: maybe with comments and declarations, each of which is tried once."""
_GUESSED_BYTES, _LEAST_ODD, _LEAST_CONFIDENCE = 1 << 16, 8, 0.05
"""By so many bytes chardet guesses an encoding, if so many are not ASCII: that of 306 of 317 man pages and notes in
twelve encodings, with a confidence from 0.08 on."""
_UNTOLD = "an encoding that can be told; give it a source of its own with its `encoding`"
_JAPANESE = "\x1b$"
"""How ISO-2022 begins, whose bytes are ASCII."""
_WESTERN = re.compile("[À-ÿ‘’“”–—…«»\xa0¡¿©°·€]")

Keys = dict[str, Any]
"""Keys of a source and their values, as a recipe has them."""
Letters = Counter[str]
"""By column, the letters in texts of several words of the first records; of a file without columns, that of ""."""
_NO_COLUMN = Letters({"": 0})
Look = tuple[File, Keys, Letters]
"""A file that was looked at."""


@dataclass(slots=True)
class Found:
    """A source of a survey."""

    keys: Keys
    files: list[File]
    columns: Letters
    glob: str = ""
    """Has all files of the source; empty for files that are named one by one."""
    among: Set[str] = frozenset()
    """The names of all files that the glob has."""


def look_at(file: File) -> tuple[Keys, Letters]:
    """Return the keys by which a source reads a file, and the letters in its columns.

    For a long text without marks between documents, `cut` is the separator that divides it best.

    Raises:
        InputError: the file holds no text; the message begins with its name and the reason.
        OSError, ValueError, EOFError: it cannot be read.
    """
    with open_file(file) as raw:
        stream = open_decompressed(raw, file.name)
        head = stream.read(HEAD_BYTES)
        encoding = find_wide_encoding(head)
        # A recipe gives the format of compressed text whose name does not, so the name counts without its `.gz`.
        named = replace(file, name=os.path.splitext(file.name)[0]) if compression_of(file.name) else file
        format_ = detect_format(named, encoding or UTF8, head)
        keys: Keys = {"format": format_} | ({"encoding": encoding} if encoding else {})
        if format_ in ("jsonl", "json", "csv") and (what := look_up(head, STAND_INS)):
            raise SourceError(f"{file.name}: holds {what}")
        if format_ in ("parquet", "arrow"):
            return _choose_column(file, keys, _list_rows(file, format_))
        if format_ in ("html", "ipynb"):
            return _look_at_page(file, format_, head + stream.read(MOST_PAGE_BYTES)), _NO_COLUMN
        if not encoding and is_binary(head):
            raise SourceError(f"{file.name}: binary data")
        text, odd = _decode(stream, head, encoding or "utf-8-sig", _MOST_DECODED if format_ in ("file", "text") else 0)
    if _JAPANESE in text[:HEAD_BYTES] and guess_encoding(text.encode()).startswith("iso2022"):
        odd = text.encode()
    if odd:
        guess = find_encoding(odd, otherwise="") if odd.startswith(b"<?xml") else ""
        if guess in ("", "utf-8-sig"):  # it is not UTF-8, whatever it declares
            guess = guess_encoding(odd)
        text = codecs.getincrementaldecoder(guess or "ascii")("replace").decode(odd)
        if encoding or not guess or "\ufffd" in text:
            raise SourceError(f"{file.name}: not {encoding or f'UTF-8, nor in {_UNTOLD}'}")
        keys["encoding"] = guess
    if not text.strip():
        raise SourceError(f"{file.name}: empty")
    if format_ == "csv":
        return _choose_column(file, keys, _list_lines(file, keys, text[:HEAD_BYTES], len(text) < HEAD_BYTES))
    if format_ == "text":
        lines = text.strip().encode().split(b"\n", _RECORDS)[:_RECORDS]
        if None not in map(parse_object, filter(bytes.strip, lines)):
            keys["format"] = format_ = "jsonl"
    if format_ in ("jsonl", "json"):
        return _choose_column(file, keys, _list_objects(text))
    return _look_at_text(file, keys, text), _NO_COLUMN


def _decode(stream: Any, head: bytes, encoding: str, most: int) -> tuple[str, bytes]:
    """Return the beginning of a text, of which up to `most` bytes more are decoded; or bytes that do not decode."""
    decoder, piece = codecs.getincrementaldecoder(encoding)(), head + stream.read(_BEGINNING_BYTES)
    try:
        text = decoder.decode(piece, len(piece) < HEAD_BYTES)
        while most > 0 and (piece := stream.read(_BEGINNING_BYTES)):
            decoder.decode(piece)
            most -= len(piece)
    except UnicodeDecodeError:
        return "", head + piece
    return text, b""


def _look_at_text(file: File, keys: Keys, text: str) -> Keys:
    """Return how a source reads a text: a file a document, unless a line that is a mark divides it."""
    shown = text[:MOST_CHARACTERS]
    if _PICTURE.match(shown):
        raise SourceError(f"{file.name}: an image (SVG or XPM), not text")
    is_mail = _MAILBOX.match(shown) or file.name.endswith((".eml", ".mbox"))
    for kind in (MAIL, CHATS):
        if KINDS[kind][0](shown) or (is_mail and kind == MAIL):
            raise SourceError(f"{file.name}: {kind}; {KINDS[kind][1]}")
    if shown.lstrip().startswith("<") and KINDS["HTML"][0](shown):
        return _look_at_page(file, "html", text.encode())
    ends = "\r\n" if "\r\n" in text else "\n"
    for mark, _ in Counter(_MARK.findall(text)).most_common(1):
        parts = text.split(separator := f"{ends}{mark}{ends}")
        if len(parts) > _LEAST_PARTS and max(map(len, parts)) <= _LARGEST_PART * len(text):
            return keys | {"format": "text", "separator": separator}
    keys["format"] = "file"
    if len(text) >= 2 * JOIN_BYTES:
        cuts = (cut for cut in ("\n\n", "\r\n\r\n") if 2 * JOIN_BYTES * text.count(cut) >= len(text))
        keys["cut"] = next(cuts, "\n")
    return keys


def _look_at_page(file: File, format_: str, data: bytes) -> Keys:
    """Return how a source reads a page or a notebook, of which it has the text."""
    if format_ == "ipynb":
        join_cells(data)
        return {"format": format_}
    if len(data) > MOST_PAGE_BYTES:
        raise SourceError(f"{file.name}: a page of over {MOST_PAGE_BYTES:,} bytes; split it, or extract its text first")
    check_extra("trafilatura")
    encoding = find_encoding(data, otherwise="") or guess_encoding(data)
    if not encoding:
        raise SourceError(f"{file.name}: not UTF-8, nor in {_UNTOLD}")
    data.decode(encoding)
    return {"format": format_} | ({} if encoding == find_encoding(data) else {"encoding": encoding})


def _choose_column(file: File, keys: Keys, records: Iterable[Any]) -> tuple[Keys, Letters]:
    letters, first = Letters(), [*itertools.islice(records, _RECORDS)]
    if not first:
        why = "its first record is malformed, or longer than 8 MB; write its source by hand"
        what = why if "json" in keys["format"] else "empty"
        raise SourceError(f"{file.name}: {what}")
    for record in first:
        _count_letters(letters, "", record)
    if any({*fields} <= letters.keys() for fields in _MESSAGE):
        raise SourceError(f"{file.name}: each record is a message, as chats have: {KINDS[CHATS][1]}")
    column = _find_column([letters])
    read = _read_column(column, letters)
    if IN_LIST in read.get("text", "") or not column:
        shown = f"the text is in lists, {column!r}: join the texts of each, or write messages of `role` and `content`"
        raise SourceError(f"{file.name}: {shown if column else 'no column of text'}")
    if len(first) == 1 and "." in read.get("text", "") and ending_of(file.name) == ".json":
        raise SourceError(f"{file.name}: one JSON object with others in it, no records; `jq -c '.[]'` writes these")
    return keys | read, letters


_PAIRS = (("prompt", "completion"), ("prompt", "response"), ("question", "answer"))
"""Columns of questions and of their answers: conversations of one turn, if no other column belongs to them."""
_BESIDE = {"context", "input", "passage"}
_MESSAGE = (("content", "role"), ("value", "from"))
"""The fields of a message: its text, and who says it."""


def _read_column(column: str, letters: Letters) -> Keys:
    """Return the keys by which a source reads a column of text, or of messages, whose contents it is."""
    for pair in () if _BESIDE & letters.keys() else _PAIRS:
        if column in pair and {*pair} <= letters.keys():
            return {"messages": [*pair]}
    name, in_list, field = column.partition(IN_LIST)
    role = dict(_MESSAGE).get(field[1:])
    return {"messages": name} if in_list and f"{name}{in_list}.{role}" in letters else {"text": column}


def _find_column(found: Iterable[Letters]) -> str:
    """Return the column with the most letters, else one named `text`; empty if none has."""
    most = sum(found, Letters()).most_common(1)  # a sum has no column without letters
    return most[0][0] if most else ""


def _list_lines(file: File, keys: Keys, text: str, is_whole: bool) -> Iterator[Any]:
    """Yield the first rows of CSV, and add to the keys how it is read."""
    delimiter, data = max(",;\t|", key=text.partition("\n")[0].count), text.encode()
    quoted = QuotedFields(Form(delimiter), data)
    is_open = is_whole and any(after > len(data) for _, after in quoted.places[-1:])
    keys |= {"delimiter": delimiter} | ({"quote": ""} if is_open or quoted.judge(data)[2] else {})
    if "\r" in text.partition("\n")[0].rstrip("\r"):
        raise SourceError(f"{file.name}: {OLD_MAC}")
    lines = Form(delimiter, keys.get("quote")).read(io.StringIO(text, newline=""))
    names = next(lines, [])
    if any(len(name) > _MOST_OF_A_HEADER or _NUMBER.fullmatch(name) or name[:2] == "# " for name in names):
        raise SourceError(f"{file.name}: the first row looks like a record or a comment; add a header")
    yield from (dict(zip(names, line, strict=False)) for line in lines)


def guess_encoding(data: bytes) -> str:
    """Return the encoding that text seems to have which is not UTF-8; empty if it seems to be no text."""
    import chardet

    odd = re.sub("[\0-\x7f]", "", data.decode(errors="replace"))
    if len(odd) > 2 * odd.count("\ufffd"):  # UTF-8 with a fault
        return ""
    first = re.search(rb"[\x1b\x80-\xff]", data)
    begin = max(0, first.start() - _GUESSED_BYTES // 2) if first else 0
    part = data[begin : begin + _GUESSED_BYTES]
    found, odd = chardet.detect(part), part.translate(None, bytes(range(0x80)))
    if found["encoding"] and found["confidence"] >= _LEAST_CONFIDENCE and not 0 < len(odd) < _LEAST_ODD:
        name = normal_encoding(found["encoding"])
        return READ_AS.get(name, name)
    # Of a single name, say.
    return "cp1252" if is_western(data.decode("cp1252", "replace")) else ""


def is_western(text: str) -> bool:
    """Return whether text that was decoded as cp1252 looks right: few letters and quotes beyond ASCII, no UTF-8."""
    odd = re.sub("[\0-\x7f]", "", text)
    is_few = len(odd) <= min(len(text) // 4, 2 * len(_WESTERN.findall(odd)))
    if not is_few or "\ufffd" in odd:
        return False
    utf8 = re.sub("[\0-\x7f]", "", text.encode("cp1252").decode("utf-8", "ignore"))
    return len(utf8) <= len(odd) // 20  # two letters may look like one of UTF-8


def _list_rows(file: File, format_: str) -> Iterator[Any]:
    """Yield the first rows of a columnar file, without dates and times, of which Python has not all."""
    with contextlib.ExitStack() as stack:
        if format_ == "parquet":
            opened, _, _ = stack.enter_context(open_parquet(file))
            batches: Any = opened.iter_batches(_RECORDS)
        else:
            raw: Any = stack.enter_context(open_file(file))
            if is_file(raw):
                opened = pa.ipc.open_file(raw)
                batches = map(opened.get_batch, range(opened.num_record_batches))
            else:
                batches = pa.ipc.open_stream(raw)
        for batch in batches:
            table = pa.Table.from_batches([batch.slice(0, _RECORDS)])
            while any(map(pa.types.is_struct, table.schema.types)):
                table = table.flatten()
            kinds = enumerate(table.schema.types)
            yield from table.select([place for place, kind in kinds if not pa.types.is_temporal(kind)]).to_pylist()


def _list_objects(text: str) -> Iterator[Any]:
    """Yield the JSON objects at the beginning of a text, on lines or in an array."""
    end, decoder = 0, json.JSONDecoder()
    for _ in range(2 * _RECORDS):  # as many may be malformed
        if not (start := _RECORD_START.match(text, end)):
            return
        try:
            record, end = decoder.raw_decode(text, start.end())
        except (ValueError, RecursionError):
            # A build says what is malformed; or the head ends here.
            if (end := text.find("\n", start.end())) < 0:
                return
            continue
        yield record


def _count_letters(letters: Letters, name: str, value: Any) -> None:
    """Add the letters in a value of a record, by column."""
    if name.count(".") >= MOST_NAMES:
        return  # no key of a recipe names it
    if isinstance(value, str):
        is_text = name == "text" or not value.isascii() or " " in value.strip()
        letters[name] += is_text and len(re.sub(r"[\W\d_]+", "", value[:_LETTERS]))
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            _count_letters(letters, name + IN_LIST, item)
    elif isinstance(value, dict):
        for key, item in cast("Keys", value).items():
            # A key that is no Unicode is malformed, which a build will say of its records.
            _count_letters(letters, f"{name}.{key}".lstrip(".").encode(errors="replace").decode(), item)


def survey(places: list[str], left_out: dict[str, str]) -> list[Found]:
    """Survey files, and return the sources that read those with text.

    Args:
        places: folders, files and globs.
        left_out: the names of files and folders that no source reads are added, with the reason of each.

    Raises:
        InputError: a place is not there, cannot be listed, or lies in another one.
    """
    parts: dict[tuple[str, str], list[File]] = defaultdict(list)
    globs: dict[str, str] = {}
    for place in dict.fromkeys(places):
        # Several places are judged as those of one glob, as a shell makes them of `data/*`.
        beside = f"{escape(posixpath.dirname(os.path.abspath(place)))}/**/*"
        for part, glob, file in _list_files(place, left_out):
            if file.name in globs:
                raise InputError(f"{file.name}: lies in two of the given places; name only one of them")
            parts[part].append(file)
            globs[file.name] = beside if len({*places}) > 1 and os.path.exists(place) else glob or file.name
    try:
        left_out |= find_marked(globs)
    except ValueError as error:
        raise InputError(f"{error}. Repair it, or leave the folder out.") from error
    files = itertools.chain(*parts.values())
    left_out |= find_copies({file.name: file.stored_bytes for file in files if file.name not in left_out})
    sources: list[Found] = []
    for (label, glob), own in parts.items():
        groups: dict[Any, list[Look]] = defaultdict(list)
        for file in own:
            try:
                if file.name not in left_out:
                    keys, letters = look_at(file)
                    groups[_kind_of(keys, letters)].append((file, keys, letters))
            except BROKEN_FILE_ERRORS as error:
                left_out[file.name] = explain_left_out(file, error)
        among = {file.name for file in own}
        for looks in groups.values():
            for keys, read, columns in _divide(looks):
                sources.append(Found({"name": label} | keys, read, columns, glob, among))
    return sources


def _list_files(place: str, left_out: dict[str, str]) -> Iterator[tuple[tuple[str, str], str, File]]:
    """Yield the files of a folder, a glob or a path, with a name and a glob for their part of it, and one for all."""
    place = place if os.path.lexists(place) else os.path.expanduser(place)  # a name, first
    root = os.path.abspath(place)
    is_folder, is_path = os.path.isdir(root), os.path.isfile(root)
    glob = f"{escape(root)}/**/*" if is_folder else escape(place) if is_path else place
    try:
        files = expand_glob(glob, left_out)
    except BROKEN_FILE_ERRORS as error:
        raise InputError(f"{place}: cannot be listed: {text_of(error)}") from error
    if not files and not os.path.exists(root):
        raise InputError(f"{place}: no such file or folder")
    name = posixpath.basename(root)
    if not is_folder:
        part = name.partition(".")[0], "" if is_path else glob
        yield from ((part, part[1], file) for file in files)
        return
    # Folders such as `day=1` are columns, not parts.
    tops = [file.name.removeprefix(root).lstrip("/").rpartition("/")[0].partition("/")[0] for file in files]
    is_deep = len({*tops}) > MOST_FOLDERS + 1 or any("=" in top for top in tops)
    for file, top in zip(files, tops, strict=True):
        below = f"{escape(posixpath.join(root, top, ''))}{'**/' if top else ''}*"
        yield (name, glob) if is_deep else (top or name, below), glob, file


def explain_left_out(file: File, error: BaseException) -> str:
    """Return why a file is left out, without a verb: it is true of one file and of many."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    if isinstance(error, MissingExtraError):
        return f"HTML; {error}"
    said = explain_unread(file, error) or text_of(error)
    for name in (file.name, os.path.splitext(file.name)[0]):
        said = said.removeprefix(f"{name}: ")
    return re.split(r"\. |, which", re.sub("^(holds|is) ", "", said))[0]


def _ending(name: str) -> str:
    """Return the ending of a name that has a letter; that of `tool.1` tells no kind."""
    found = _ENDING.search(name)
    return found[0] if found else ""


def _kind_of(keys: Keys, letters: Letters) -> tuple[str | None, ...]:
    """Return what like files have in common; the column of the text is chosen for all of them."""
    same = (keys.get(key) for key in ("format", "encoding", "delimiter", "quote", "separator"))
    return *same, *(letters if keys["format"] == "csv" else ())


def _divide(looks: list[Look]) -> Iterator[tuple[Keys, list[File], Letters]]:
    """Yield the sources of like files: by the column of the text; of few long texts, by how blank lines are written."""
    cuts = [keys["cut"] for _, keys, _ in looks if "cut" in keys] if len(looks) < FEW_DOCUMENTS else []
    while looks:
        column = _find_column(letters for *_, letters in looks)
        cut = max(cuts, key=cuts.count, default="")
        own, rest = list[Look](), list[Look]()
        for look in looks:
            is_own = look[1].get("cut", cut) == cut if cut else column in look[2]
            (own if is_own else rest).append(look)
        keys = own[0][1] | (_read_column(column, own[0][2]) if column else {})
        keys |= {"format": "text", "separator": cut, "join_bytes": JOIN_BYTES} if cut else {}
        keys.pop("cut", None)
        columns = Letters()
        for *_, letters in own:
            columns.update(letters)  # those without letters stay
        yield keys, [file for file, *_ in own], columns
        looks, cuts = rest, [other for other in cuts if other != cut]


def write_globs(found: Found, left_out: dict[str, str]) -> None:
    """Give a source few globs over its files, and globs over all others that these match, also by links to folders."""
    own = {file.name for file in found.files}
    endings = {*map(_ending, own)}
    by_ending = found.glob.endswith("/*") and "" not in endings and len(endings) <= _FEW_PATHS
    ends = endings if by_ending else {""}
    others = [name for name in found.among - own if name.endswith((*ends,))]
    if not found.glob or len(own) <= min(_FEW_PATHS, len(others)):
        found.keys |= {"paths": sorted(map(escape, own)), "exclude": []}
        return
    folders, base = {above for name in own for above in list_above(name)}, found.glob.partition("/**/*")[0]
    links = {escape(path): os.path.realpath(path).rstrip("/") + "/" for path, why in left_out.items() if why == AGAIN}
    below = [link for link, to in links.items() if link.startswith(f"{base}/") and not f"{base}/".startswith(to)]
    exclude = {glob for glob in (f"{link}/**/*" for link in below) if expand_glob(glob, {})}
    # By its ending, by its folder, or by its name.
    for name in others:
        ending, folder = _ending(name), posixpath.dirname(name)
        while (above := posixpath.dirname(folder)) not in folders and above != "/":
            folder = above
        if ending and found.glob.endswith("/*") and not any(one.endswith(ending) for one in endings):
            exclude.add(found.glob + ending)
        else:
            exclude.add(escape(name) if folder in folders else f"{escape(folder)}/**/*")
    found.keys |= {"paths": [found.glob + end for end in sorted(ends)], "exclude": sorted(exclude)}

"""Inspect files, and write a commented recipe that builds a shard set from them. Edit it as needed.

Takes folders, files, globs and Hub datasets (hf://datasets/OWNER/NAME[@REVISION][/CONFIG[/SPLIT]]). Only the heads and
tails of long files are read. Files that hold no text are left out and counted. Files that are not UTF-8 are read as
cp1252 if their text then looks right; otherwise their source is commented out, as is a source of HTML among others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError, plural, shell_command
from shards.terminal.amounts import format_size
from shards.terminal.arguments import parse_path
from shards.terminal.display import printable
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from pipeline.sources.survey import Found, Keys
    from shards.audit.not_text import NotText

_BYTES_PER_TOKEN = 4
_MOST_VAL_TOKENS = 5_000_000
_LEAST_VOCABULARY = 270
_MOST_OF_A_HEADER = 40
"""Characters; a longer name of a column looks like text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `init`."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a folder, file or glob, or hf://datasets/OWNER/NAME")
    about = "the recipe to write (default: recipe.toml)"
    parser.add_argument("--out", type=parse_path, default=Path("recipe.toml"), metavar="FILE", help=about)


def run(options: argparse.Namespace) -> Outcome:
    """Write a recipe, and return what was found and the next commands."""
    from pipeline.sources.globs import describe_left_out
    from pipeline.sources.survey import GUESSED, MOST_LOOKED_AT, UNKNOWN, survey
    from shards.stores.files import check_own_folder, write_text

    out: Path = options.out
    folder = out.absolute().parent
    hub = [path for path in options.paths if path.startswith("hf://")]
    left_out: dict[str, str] = {}
    found = survey([path for path in options.paths if path not in hub], left_out)
    if os.path.lexists(out):
        raise InputError(f"{out}: already exists and is not overwritten. Give another file by --out, or delete it.")
    check_own_folder(folder)
    found += map(_look_at_hub, hub)
    unread: list[Found] = []
    for source in [*found]:
        said = f"not UTF-8, nor {GUESSED}" if source[0].get("encoding") == UNKNOWN else ""
        if said or (_is_mostly_html(source) and len(found) > 1):
            remedy = "give it their encoding" if said else "extract their text first (docs/data.md has a script)"
            why = f"{said or 'HTML'}; the recipe has a source for them, commented out: {remedy}"
            left_out |= {file.name: why for file in source[1]}
            unread.append(source)
            found.remove(source)
    lines = [*describe_left_out({os.path.relpath(name): why for name, why in left_out.items()})]
    if sum(len(files) for _, files, _ in found) > MOST_LOOKED_AT:
        lines.append(f"looked at {MOST_LOOKED_AT:,} files, and at all files like one that is not UTF-8")
    if not found + unread:
        raise InputError([f"no text in {', '.join(options.paths)}", *lines])
    name = _make_name(Path(os.path.abspath(options.paths[0])).stem)
    names: list[str] = []
    rows = [_finish(source, names, folder, lines) for source in found]
    for source in unread:
        _finish(source, names, folder, [])
    recipe = "\n".join(_write(name, found, unread, lines)) + "\n"
    write_text(out, recipe.encode("utf-8", "replace").decode().replace("\x7f", "\\u007f"))
    made, train = f"out/{name}", ("--run", f"out/{name}-run", "--set", "eval.sets=[]")
    asked = (("plan", out), ("build", out, "--out", made), ("audit", made), ("train", "demo", "--shards", made, *train))
    commands = [shell_command("tokenmill", *words) for words in asked]
    data = {"recipe": str(out), "sources": rows, "notes": lines, "commands": commands}
    return Outcome(data, [rows, *lines, f"wrote {out}. Read it, then run:", *commands])


def _look_at_hub(address: str) -> Found:
    """Return the source that reads a data set on the Hub, by the first of its files."""
    from pipeline.recipe.sources import HubSource
    from pipeline.sources.hub import list_files, resolve_commit
    from pipeline.sources.survey import look_at
    from shards.stores.hub_store import parse_hub_address

    place = parse_hub_address(address)
    config, _, split = place.folder.partition("/")
    keys: Keys = {
        "name": place.repo.partition("/")[2],
        "kind": "hub",
        "repo": place.repo,
        "config": config or None,
        "split": split or "train",
        "revision": place.revision,
    }
    source = HubSource(weight=1.0, **keys)
    files = list_files(source.model_copy(update={"revision": resolve_commit(source)}))
    read, texts = look_at(files[0])
    return keys | read, files, texts


def _look_for_not_text(source: Found) -> NotText:
    """Return what is not text among the first documents of a source."""
    from shards.audit.not_text import look_for_not_text

    keys, _, texts = source
    noticed: NotText = {}
    for file, text in texts[keys.get("text", "")]:
        look_for_not_text(noticed, text, os.path.relpath(file))
    return noticed


def _is_mostly_html(source: Found) -> bool:
    """Return whether most of the first documents of a source are HTML."""
    noticed = _look_for_not_text(source)
    return noticed.get("HTML", (0, ""))[0] > noticed.get("", (0, ""))[0] // 2


def _make_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:80] or "text"


def _count_bytes(source: Found) -> int:
    """Return about how many bytes of text a source has."""
    from pipeline.sources.formats.byte_io import BROKEN_FILE_ERRORS, measure_compression
    from pipeline.sources.formats.parquet import open_parquet
    from pipeline.sources.survey import count_characters

    keys, files, texts = source
    share = count_characters(texts, keys.get("text", "")) / max(1, sum(count_characters(texts, name) for name in texts))
    size = sum(file.stored_bytes for file in files) * measure_compression(files[0])
    if keys["format"] == "parquet":  # a footer says how well the text is compressed
        with suppress(*BROKEN_FILE_ERRORS), open_parquet(files[0].url, files[0].version) as (opened, _, _):
            groups = map(opened.metadata.row_group, range(opened.num_row_groups))
            size *= sum(group.total_byte_size for group in groups) / files[0].stored_bytes
    return int(share * size / (2 if keys.get("encoding", "").startswith("utf") else 1)) + 1


def _finish(source: Found, names: list[str], folder: Path, lines: list[str]) -> dict[str, str]:
    """Give a source its name, weight, and paths from the recipe's folder; add lines of what is noticed; return its row.

    The weight is the bytes of text.
    """
    from pipeline.sources.survey import GUESSED
    from shards.audit.not_text import describe_not_text

    keys, files, texts = source
    keys["weight"] = _count_bytes(source)
    format_ = "tsv" if keys.get("delimiter") == "\t" else keys["format"]
    name = _make_name("-".join([keys["name"], format_, keys.get("encoding", "")]))
    names.append(name)
    twins = names.count(name)
    keys["name"] = f"{name}-{twins}" if twins > 1 else name
    for key in ("paths", "exclude"):
        paths = [path if "://" in path else os.path.relpath(path, folder) for path in keys.get(key, [])]
        keys[key] = [f"./{path}" if path[0] == "~" else path for path in paths]  # a name, and not a home folder
    if separator := keys.get("separator"):
        size = sum(len(text + separator) for _, text in texts[""]) / len(texts[""])
        number = round(keys["weight"] / size) if len(texts[""]) > len(dict(texts[""])) else len(files)
        cut = f"cut at {json.dumps(separator)} into about {plural(number or 1, 'document')}"
        lines.append(f'{keys["name"]}: {cut}; format = "file" without a separator makes each file one document.')
    if keys["format"] == "csv" and any(len(column) > _MOST_OF_A_HEADER or column.isdigit() for column in texts):
        lines.append(f"{keys['name']}: the first row is read as the header, but looks like a record. Add a header.")
    if keys.get("encoding") == GUESSED:
        lines.append(f"{keys['name']}: {GUESSED} is a guess. Read some of the text, or give the real encoding.")
    if crlf := next((file for file, text in texts[keys.get("text", "")] if "\r" in text), ""):
        lines.append(f'{keys["name"]}: lines end with "\\r\\n" ({os.path.relpath(crlf)}), which stays in the text.')
    lines += [f"{keys['name']}: {line}." for line in describe_not_text(_look_for_not_text(source))]
    return {
        "source": keys["name"],
        "text": keys.get("text") or json.dumps(keys.get("separator", "whole files")),
        "files": f"{len(files):,}",
        "size": format_size(keys["weight"]),
    }


def _write(name: str, found: list[Found], unread: list[Found], lines: list[str]) -> Iterator[str]:
    """Yield the lines of the recipe; sources that are not read as they are, are commented out."""
    from pipeline.clean.language import count_languages

    total = sum(keys["weight"] for keys, *_ in found or unread)
    yield "# Written by `tokenmill init`. Edit it: docs/keys.md lists every key, and docs/cleaning.md what to drop."
    yield from (f"# {printable(line)}" for line in lines)
    yield f'name = "{name}"'
    comments = {
        "kind": "a data set on the Hub; the first build pins its commit",
        "exclude": "not text, or read with other keys",
        "delimiter": "the first row is the header",
        "quote": "quotes are characters of the text",
        "separator": "the text between two documents in a file",
        "encoding": "by the byte order mark, or cp1252 as a guess: read some of the text, or give its real encoding",
        "weight": "its share of the text; `plan` says which source limits the mix",
    }
    for number, (keys, files, texts) in enumerate(found + unread):
        mark = "" if number < len(found) else "#"
        yield f"\n# {plural(len(files), 'file')}, about {format_size(keys['weight'])} of text"
        if languages := count_languages(text for _, text in texts[keys.get("text", "")]):
            shares = ", ".join(f"{language} {count:,}" for language, count in languages.most_common(5))
            yield f"# languages of {plural(languages.total(), 'document')}: {shares}"
        yield f"{mark}[[sources]]"
        others = [column for column in texts if column != keys.get("text")]
        comments["text"] = f"the column with most text; the others: {', '.join(others) or 'none'}"
        whole = 'each file is one document; or format = "text" with a separator'
        comments["format"] = whole if keys["format"] == "file" else ""
        for key, value in (keys | {"weight": float(f"{100 * keys['weight'] / total:.3g}")}).items():
            if value not in ([], None):
                comment = f"  # {printable(about)}" if (about := comments.pop(key, "")) else ""
                yield f"{mark}{key} = {json.dumps(value, ensure_ascii=False)}{comment}"
    yield f"\n[tokenizer]\nvocab_size = {min(1 << 16, max(_LEAST_VOCABULARY, 8 << 2 * total.bit_length() // 5))}"
    yield '\n[mix]\ntokens = "max"  # as many as the sources allow at these weights; or a number, such as "100M"'
    yield f"\n[split]\nval_tokens = {min(_MOST_VAL_TOKENS, total // _BYTES_PER_TOKEN // 100)}  # about 1%"
    yield "\n[clean.near_duplicates]  # exact duplicates are always dropped"
    yield 'action = "drop"  # or "report", which counts them'

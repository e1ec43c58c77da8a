"""Inspect files, and write a commented recipe that builds a shard set from them. Edit it as needed.

Takes folders, files, globs and Hub datasets (hf://datasets/OWNER/NAME[@REVISION][/CONFIG[/SPLIT]]). Like files of a
folder are one source. What is not read (test splits, images, mail, logs of chats) is left out and counted. Files that
are not UTF-8 are read in the encoding that they seem to have. `plan` and `build` take the recipe as it is.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError, plural, shell_command
from shards.terminal.amounts import format_size
from shards.terminal.arguments import parse_path
from shards.terminal.display import printable
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from pipeline.clean.tally import Tally
    from pipeline.sources.survey import Found, Keys

READ_BYTES = 1 << 26
"""Text of a source that is read as a build does, to count its documents and to find malformed records."""
_MOST_FILES = {"file": 512, "html": 32}
"""Files of it, each read in part; `survey` has decoded the text files."""
_SAMPLE_CHARACTERS = 1 << 20
"""Of them, to see how large a vocabulary may be."""
_BYTES_PER_TOKEN = 4
_MOST_VAL_TOKENS = 5_000_000
_LEAST_VOCABULARY, _MOST_VOCABULARY = 257, 1 << 16
_BYTES_PER_ENTRY = 8
"""Compressed bytes of text for each entry: prose offers twice as many entries."""
_MOST_DECISIONS = 5
_MANY_DROPPED = 10
"""One in so many records that are dropped is said."""
_MOST_CHAT_TOKENS = 2048
"""What a packed row of a model holds at most that `fit --write` chooses for a CPU."""
_OTHER_TEXT = 16
"""Another column with one in so many of the letters is said: Alpaca's `input`, seldom a title."""
_USUAL = re.compile("an image|binary|empty$|hidden|PDF|a pipe|link|backup|beside the rows|no document|a copy")
"""What is left out and hardly anybody would read; it is said last."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `init`."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a folder, file or glob, or hf://datasets/OWNER/NAME")
    about = "the recipe to write (default: recipe.toml)"
    parser.add_argument("--out", type=parse_path, default=Path("recipe.toml"), metavar="FILE", help=about)
    parser.add_argument("--verbose", action="store_true", help="print all notes, not only the most important ones")


def run(options: argparse.Namespace) -> Outcome:
    """Write a recipe, and return what was found and the next commands."""
    from pipeline.sources.globs import describe_left_out
    from pipeline.sources.survey import FEW_DOCUMENTS, survey
    from shards.stores.files import check_own_folder, write_text

    out: Path = options.out
    folder = out.absolute().parent
    hub = [path for path in options.paths if path.startswith("hf://")]
    left_out: dict[str, str] = {}
    found = survey([path for path in options.paths if path not in hub], left_out)
    if os.path.lexists(out):
        raise InputError(f"{out}: already exists and is not overwritten. Give another file by --out, or delete it.")
    check_own_folder(folder)
    counted = [_count(one, left_out) for one in [*found, *map(_look_at_hub, hub)]]
    sources = [source for source in counted if source.documents]
    lines = [*describe_left_out({os.path.relpath(name): why for name, why in left_out.items()})]
    if not sources:
        raise InputError([f"no text in {', '.join(options.paths)}", *lines])
    _name(sources, folder)
    # Validation takes whole documents.
    few = sum(source.documents for source in sources) < FEW_DOCUMENTS
    notes = [f"fewer than {FEW_DOCUMENTS} documents: no validation split, which training needs"] if few else []
    odd = [source.found.keys for source in sources if not source.found.keys.get("encoding", "utf").startswith("utf")]
    if guessed := ", ".join(f"{keys['name']} {keys['encoding']}" for keys in odd):
        notes.append(f"encodings, guessed or declared: {guessed}. Read some text by `plan --show`, or correct them.")
    notes += [line for source in sources for line in _notice(source)]
    notes += sorted(lines, key=lambda line: _USUAL.search(line) is not None)
    shown = notes if options.verbose else notes[:_MOST_DECISIONS]
    shown += [f"{len(notes) - len(shown):,} more with --verbose"] if len(shown) < len(notes) else []
    first = Path(os.path.abspath(options.paths[0]))
    name = _make_name(first.name if first.is_dir() else first.stem)
    recipe = "\n".join(_write(name, sources, shown, has_validation=not few)) + "\n"
    write_text(out, recipe.encode("utf-8", "replace").decode().replace("\x7f", "\\u007f"))
    made, model = f"out/{name}", f"{name}-model.toml"
    asked = (
        ("plan", out),
        ("build", out, "--out", made),
        ("audit", made),
        ("fit", "--shards", made, "--write", model),
        ("train", model, "--shards", made, "--run", f"{made}-run"),
    )
    # Training needs a validation split.
    commands = [shell_command("tokenmill", *words) for words in asked[: 3 if few else None]]
    rows = [_describe(source) for source in sources]
    data = {"recipe": str(out), "sources": rows, "notes": notes, "commands": commands}
    return Outcome(data, [rows, *shown, f"wrote {out}. Read it, then run:", *commands])


@dataclass(slots=True)
class _Source:
    """A source, and what a build reads of it."""

    found: Found
    texts: list[tuple[str, str]]
    """The first, each with the name of its file."""
    tally: Tally
    """What was dropped of the part that was read."""
    drops: str
    """The same in words, if it is much."""
    is_exact: bool
    """Whether its documents are counted, not estimated."""
    documents: int
    text_bytes: int


def _count(found: Found, left_out: dict[str, str]) -> _Source:
    """Read some of a source as a build does: count its documents, and leave out the files that cannot be read."""
    from pipeline.clean.documents import DocumentStream
    from pipeline.clean.reasons import NULL, describe_drops
    from pipeline.clean.steps import name_invalid
    from pipeline.clean.tally import Tally
    from pipeline.recipe.sources import MAX_NULL, FilesSource, HubSource
    from pipeline.sources.base import MALFORMED
    from pipeline.sources.files import list_spans_of_file
    from pipeline.sources.formats.byte_io import BROKEN_FILE_ERRORS
    from pipeline.sources.messages import NO_MESSAGES
    from pipeline.sources.survey import explain_left_out, write_globs
    from shards.audit.not_text import CHATS, KINDS, MAIL

    keys, is_hub = found.keys, "kind" in found.keys
    given: Keys = keys | {"name": "s", "max_malformed": 1.0}
    source = HubSource.model_validate(given) if is_hub else FilesSource.model_validate(given | {"paths": ["x"]})
    sampled = found.files[:: -(-len(found.files) // (1 if is_hub else _MOST_FILES.get(keys["format"], 1 << 12)))]
    room = _SAMPLE_CHARACTERS
    read, documents, text_bytes, tallies, texts = 0.0, 0, 0, list[Tally](), list[tuple[str, str]]()
    for file in sampled:
        named = file if is_hub else replace(file, name=os.path.relpath(file.name))
        try:
            spans = list_spans_of_file(source, named, None)
            stream = DocumentStream(source, spans, most_bytes=READ_BYTES // len(sampled))
            for _, own in stream:
                text_bytes += own.num_bytes
                for text in map(str, own.text.slice(0, room).to_pylist()):
                    texts.append((named.name, text[:room]))
                    room = max(0, room - len(text))
        except BROKEN_FILE_ERRORS as error:
            left_out[file.name] = explain_left_out(named, error)
            continue
        tallies.append(stream.tally)
        documents += stream.documents
        read += file.stored_bytes * stream.stated_bytes / max(1, sum(span.text_bytes for span in spans))
    tally = Tally.sum(tallies)
    files = [file for file in found.files if file.name not in left_out]
    records = documents + tally.dropped.total()
    drops = describe_drops(tally.dropped, records)
    why = "" if documents else drops or "no document"
    for kind in (CHATS, MAIL):
        if 2 * tally.not_text.get(kind, (0, ""))[0] > tally.not_text.get("", (0, ""))[0]:
            why = f"{kind}: {KINDS[kind][1]}"
    if tally.malformed and 2 * tally.dropped[MALFORMED] > records:
        why = f"most records are malformed, such as {tally.malformed[0]}"
    if why:
        left_out |= {file.name: why for file in files}
        documents = 0
    elif not is_hub:
        found.files = files
        write_globs(found, left_out)
    share = min(1.0, read / max(1, sum(file.stored_bytes for file in files))) or 1.0
    is_whole = not _name_columns(keys) and "separator" not in keys  # a document each
    number = len(files) if is_whole and documents else round(documents / share)
    # What stops a build by default is allowed where it was found, or may be in what was not read.
    malformed = tally.dropped[MALFORMED] + tally.dropped[name_invalid(source)]
    null = tally.dropped[NULL] + tally.dropped[NO_MESSAGES]
    if malformed or (share < 1 and _name_columns(keys)):
        keys["max_malformed"] = _allow(malformed, records)
    if 2 * null > MAX_NULL * records:
        keys["max_null"] = _allow(null, records)
    drops = drops if _MANY_DROPPED * tally.dropped.total() > records else ""
    return _Source(found, texts, tally, drops, is_whole or share == 1, number, round(text_bytes / share))


def _allow(count: int, records: int) -> float:
    """Return a bound for a share of records, twice as high as was found."""
    return min(1.0, round(0.01 + 2 * count / max(1, records), 2))


def _look_at_hub(address: str) -> Found:
    """Return the source that reads a data set on the Hub, by the first of its files."""
    from pipeline.recipe.sources import HubSource
    from pipeline.sources.hub import list_files, resolve_commit
    from pipeline.sources.survey import Found, look_at
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
    source = HubSource(**keys)
    files = list_files(source.with_values(revision=resolve_commit(source)))
    read, columns = look_at(files[0])
    return Found(keys | read, files, columns)


def _make_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:80] or "text"


def _name(sources: list[_Source], folder: Path) -> None:
    """Give each source a name of its own, and paths from the recipe's folder."""
    labels = [_make_name(source.found.keys["name"]) for source in sources]
    names = Counter[str]()
    for source, label in zip(sources, labels, strict=True):
        keys, name = source.found.keys, label
        if labels.count(label) > 1:
            format_ = "tsv" if keys.get("delimiter") == "\t" else keys["format"]
            name = _make_name("-".join([label, format_, keys.get("encoding", "")]))
        names[name] += 1
        keys["name"] = f"{name}-{names[name]}" if names[name] > 1 else name
        for key in ("paths", "exclude"):
            paths = [path if "://" in path else os.path.relpath(path, folder) for path in keys.get(key, [])]
            keys[key] = [f"./{path}" if path[0] == "~" else path for path in paths]  # a name, and not a home folder


def _notice(source: _Source) -> Iterator[str]:
    """Yield what a person should know of a source."""
    from pipeline.sources.formats.columns import list_names
    from shards.audit.not_text import describe_not_text
    from shards.audit.split_names import has_split_word

    keys = source.found.keys
    name = keys["name"]
    yield from (f"{name}: {line}." for line in describe_not_text(source.tally.not_text))
    if source.drops:
        yield f"{name}: {source.drops}."
    if "messages" in keys:
        yield f"{name}: conversations of more than {_MOST_CHAT_TOKENS:,} tokens are dropped (chat.max_tokens)."
    splits = [file.name for file in source.found.files if has_split_word(os.path.basename(file.name))]
    if splits and _name_columns(keys):
        yield f"{name}: read, though it may be a test or validation split: {os.path.relpath(splits[0])}"
    letters, text = source.found.columns, keys.get("text", "")
    if beside := [column for column in letters if column != text and _OTHER_TEXT * letters[column] > letters[text] > 0]:
        yield (
            f"{name}: text in other columns is not read: {list_names(beside)}. If they are questions and answers, make "
            "messages of them (docs/chat.md)."
        )
    if source.tally.malformed:
        yield f"{name}: some records are malformed, and dropped: {source.tally.malformed[0]}"
    if cr := next((file for file, text in source.texts if "\r" in text), ""):
        yield f'{name}: lines end with "\\r\\n" or "\\r" ({cr}), which stays in the text.'
    if not source.is_exact:
        yield f"{name}: a part of it was read; its documents are estimated."


def _name_columns(keys: Keys) -> list[str]:
    """Return the columns of text that a source reads."""
    named: str | list[str] = keys.get("messages", keys.get("text", []))
    return [named] if isinstance(named, str) else named


def _describe(source: _Source) -> dict[str, str]:
    """Return the row of a source in the table."""
    keys = source.found.keys
    columns = " and ".join(_name_columns(keys))
    cut = f"column {columns}" if columns else "each file"
    if "separator" in keys:
        cut = f"at {json.dumps(keys['separator'])}"
        cut += f" into {format_size(keys['join_bytes'])} or more" if "join_bytes" in keys else ""
    return {
        "source": keys["name"],
        "files": f"{len(source.found.files):,}",
        "bytes": format_size(source.text_bytes),
        "documents": ("" if source.is_exact else "about ") + f"{source.documents:,}",
        "how cut": printable(cut),
        "note": ", ".join(filter(None, [keys["format"], keys.get("encoding", "")])),
    }


def _write(name: str, sources: list[_Source], lines: list[str], *, has_validation: bool) -> Iterator[str]:
    """Yield the lines of the recipe."""
    from pipeline.sources.formats.columns import list_names, read_path_columns
    from pipeline.sources.survey import IN_LIST

    total = sum(source.text_bytes for source in sources)
    yield "# Written by `tokenmill init`. Edit it: docs/keys.md lists every key, and docs/cleaning.md what to drop."
    yield from (f"# {printable(line)}" for line in lines)
    yield f'name = "{name}"'
    comments = {
        "kind": "a data set on the Hub; the first build pins its commit",
        "exclude": "not in this source",
        "delimiter": "the first row is the header",
        "quote": "quotes are characters of the text",
        "separator": "the text between two documents in a file",
        "join_bytes": "so that there are documents for validation",
        "encoding": "by the byte order mark, or a guess: read some of the text, or give its real encoding",
        "max_malformed": "the share of the records that may be malformed; these are dropped and counted",
    }
    for source in sources:
        found, keys = source.found, source.found.keys
        size, documents = format_size(source.text_bytes), plural(source.documents, "document")
        yield f"\n# {plural(len(found.files), 'file')}, about {size} of text, {documents}"
        folders = sorted({column for file in found.files for column in read_path_columns(file.name)})
        named = _name_columns(keys)
        if folders and named:
            columns = ", ".join(map(printable, folders))
            yield f"# folders are columns ({columns}); conditions: keep = {{ {json.dumps(folders[0])} = \"== 'a'\" }}"
        yield "[[sources]]"
        others = list_names(column for column in found.columns if column.partition(IN_LIST)[0] not in named)
        comments["text"] = f"the column with most text; the others: {others}"
        comments["messages"] = f"conversations; other columns: {others}"
        for key, value in keys.items():
            if value not in ([], None):
                comment = f"  # {printable(said)}" if (said := comments.get(key, "")) else ""
                yield f"{key} = {json.dumps(value, ensure_ascii=False)}{comment}"
    if any("messages" in source.found.keys for source in sources):
        yield '\n[chat]\nformat = "chatml"  # what stands around a message'
        yield f"max_tokens = {_MOST_CHAT_TOKENS}  # longer ones are dropped, and counted; `fit` takes 16,384 on a GPU"
    # As many entries as the text has parts for, by its size and by how well it compresses.
    sample = "".join(text for source in sources for _, text in source.texts).encode("utf-8", "replace")
    offered = min(8 << 2 * total.bit_length() // 5, len(zlib.compress(sample)) // _BYTES_PER_ENTRY)
    # Each word becomes an entry, or each four letters where no spaces divide words; text that repeats itself has few.
    words = {word for source in sources for _, text in source.texts for word in re.findall(r" ?\w{2,}", text)}
    entries = set[str]()
    for word in words:
        fours = [] if word.isascii() else re.findall("....", word)
        entries.update(fours or [word])
    offered = min(offered, len(entries) * total // max(1, len(sample)))
    yield f"\n[tokenizer]\nvocab_size = {min(_MOST_VOCABULARY, _LEAST_VOCABULARY + offered)}"
    yield '\n[mix]\ntokens = "max"  # all text, each document once; or a number, such as "100M"'
    val_tokens = min(_MOST_VAL_TOKENS, total // _BYTES_PER_TOKEN // 100) if has_validation else 0
    yield f"\n[split]\nval_tokens = {val_tokens}  # usually about 1%, of whole documents; training needs some"
    if importlib.util.find_spec("numba"):
        yield "\n[clean.near_duplicates]  # exact duplicates are always dropped"
        yield 'action = "drop"  # or "report", which counts them\nmax_dropped = 1.0  # a source may consist of them'

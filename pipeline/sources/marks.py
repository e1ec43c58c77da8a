"""The table of marks: what in folders is no text of a source, by names. Which files are splits, `split_names.py` says.

A path that a glob spells (a file itself, a folder before the first `*`) is read: marks are for what a glob happens to
match. A folder of `datasets.save_to_disk` has the files that its `state.json` names, and a Delta table is refused,
because its files hold rows that were deleted. A `stat` or two for each folder and mark.
"""

import filecmp
import glob as globbing
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.sources.globs import unescape
from shards.audit.split_names import find_splits, has_split_word, list_above
from shards.config import list_of, table_of
from shards.errors import shell_command
from shards.stores.files import read_file

SAVED_SPLITS = "dataset_dict.json"
"""What `datasets.save_to_disk` writes beside saved splits."""
_MOST_LIST_BYTES = 1 << 24
_FOLDERS = {
    "a shard set": {"manifest.json", "tokenizer.json"},
    "the work folder of a build": {"stages.json", "spans.json"},
    "a training run": {"recipe.json", "metrics.jsonl"},
    "an audit": {"audit.json", "tokens.parquet"},
    "a report": {".report", "index.html", "README.md"},
}
"""Kinds of folders that hold no text of a source, and of each the names by which it is known."""
_COMPANION = re.compile(r".+~|#.+#|~\$.+|\..+\.sw[a-p]|Thumbs\.db|desktop\.ini|(.+)\.(?:bak|orig)", re.DOTALL)
SPLIT = "a test or validation split; to read it, name the file in `paths`"
COMPANION = "an editor's backup, or written by the system"
DELTA = "a Delta table"
CACHED = "beside the rows that `datasets` saved"


def name_folder(folder: str) -> str:
    """Return which of the known kinds a folder is of; empty if of none."""
    for kind, names in _FOLDERS.items():
        if all(folder.endswith(name) or os.path.exists(f"{folder}/{name}") for name in names):
            return kind
    return ""


def read_list(path: Path, key: str) -> list[Any]:
    """Return a list in a file of `datasets`; an empty one if there is none, or something else wrote the file."""
    try:
        return list_of(table_of(json.loads(read_file(path, _MOST_LIST_BYTES))).get(key))
    except (OSError, ValueError, RecursionError):
        return []


def list_saved(folder: str) -> list[str]:
    """Return the names of the files with the rows of a folder of `datasets.save_to_disk`; none of another folder.

    Raises:
        ValueError: a file is not in the folder.
    """
    names = [str(table_of(file).get("filename")) for file in read_list(Path(folder, "state.json"), "_data_files")]
    for name in names:
        path = os.path.realpath(os.path.join(folder, name))
        if "/" in name or os.path.dirname(path) != os.path.realpath(folder) or not os.path.exists(path):
            raise ValueError(f"{folder}/state.json names {name!r}, which is not a file of its folder")
    return names


def find_marked(files: Mapping[str, str], *, with_splits: bool = False) -> dict[str, str]:
    """Return the names of files to leave out, each with the reason; of a Delta table, also the remedy.

    Args:
        files: the names of files that are read together, each with the glob that lists it.
        with_splits: whether test and validation splits are read.

    Raises:
        ValueError: `datasets` saved a folder with files of others.
    """
    cuts = {glob: _cut_glob(glob) for glob in {*files.values()}}
    heads = {f"{head}/" for head, tail in cuts.values() if tail}
    saved = cache(list_saved)

    @cache
    def explain(folder: str) -> str:
        """Return why all files below a folder are left out."""
        if os.path.isdir(f"{folder}/_delta_log"):
            return _explain_delta(folder)
        above, _, base = folder.rpartition("/")
        if any(f"{folder}/".startswith(head) for head in heads):
            if kind := name_folder(folder):
                return kind
            is_spelled = with_splits or f"{folder}/" in heads
            if not is_spelled and has_split_word(base) and os.path.exists(f"{above}/{SAVED_SPLITS}"):
                return SPLIT
        return explain(above) if above else ""

    found: dict[str, str] = {}
    for name, glob in files.items():
        folder, _, base = name.rpartition("/")
        if not cuts[glob][1]:
            continue  # named itself
        companion = _COMPANION.fullmatch(base)
        why = COMPANION if companion and (not companion[1] or os.path.exists(f"{folder}/{companion[1]}")) else ""
        why = why or (CACHED if saved(folder) and base not in saved(folder) else explain(folder))
        found |= {name: why} if why else {}
    splits = {} if with_splits else find_splits(files.keys() - found.keys())
    for name, path in splits.items():
        head, tail = cuts[files[name]]
        spelled = has_split_word(tail[-1]) if path == name and tail else path.rpartition("/")[2] in tail
        if tail and not spelled and not f"{head}/".startswith(f"{path}/"):
            found[name] = SPLIT
    return found


def find_copies(sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the files of folders that have the same files as the folder beside them, each with the reason.

    Args:
        sizes: of files, by their names.
    """
    contents = Counter[str]()
    for name, size in sizes.items():
        contents.update({folder: hash((name[len(folder) :], size)) for folder in list_above(name) if size})
    alike: dict[tuple[str, int], list[str]] = defaultdict(list)
    for folder in sorted(contents, key=lambda path: (len(path), path)):
        alike[os.path.dirname(folder), contents[folder]].append(folder)
    found: dict[str, str] = {}
    for first, *others in alike.values():
        for folder in others:
            names = [name for name in sizes if name.startswith(f"{folder}/")]
            with suppress(OSError):
                if all(filecmp.cmp(name, first + name[len(folder) :], shallow=False) for name in names):
                    found |= dict.fromkeys(names, f"in a copy of the folder {os.path.basename(first)!r} beside it")
    return found


def _cut_glob(glob: str) -> tuple[str, list[str]]:
    """Return the folder of a glob before its first sign, as files are named, and its parts after it; none of a path."""
    parts = glob.split("/")
    end = next((number for number, part in enumerate(parts) if part != globbing.escape(unescape(part))), len(parts))
    if os.path.lexists(glob) or os.path.lexists(unescape(glob)):
        end = len(parts)
    head = unescape("/".join(parts[:end]))
    scheme, _, place = head.partition("://")
    return ("" if scheme == "file" else f"/{scheme}") + f"/{place}" if place else os.path.abspath(head), parts[end:]


def _explain_delta(table: str) -> str:
    """Return why a Delta table is not read, and the line of Python that makes plain Parquet of it."""
    made = f"deltalake.DeltaTable({json.dumps(table)}).to_pyarrow_dataset(), {json.dumps(f'{table}-rows')}"
    line = f'import deltalake, pyarrow.dataset as d; d.write_dataset({made}, format="parquet")'
    command = shell_command("python", "-c", line)
    return f"{DELTA}, whose files also hold rows that were deleted; `{command}` writes its rows as Parquet"

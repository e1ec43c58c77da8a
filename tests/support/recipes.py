"""Recipes of tests: tables as Python values, written as TOML; what a test does not care about has a small default."""

import datetime
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from shards.errors import InputError

Table = dict[str, Any]


GOOD = """\
name = "good"
[[sources]]
name = "prose"
paths = ["{folder}/*.jsonl"]
weight = 87
[[sources]]
name = "code"
paths = ["{folder}/*.py"]
weight = 3.5
[tokenizer]
vocab_size = 300
"""
"""A recipe for tests to change."""


def source(name: str, *paths: Path | str, weight: float = 1, **keys: Any) -> Table:
    """Return the table of a source; `keys` are further keys of the recipe."""
    given = {"paths": [str(path) for path in paths]} if paths else {}
    return {"name": name, **given, "weight": weight, **keys}


def write_recipe(path: Path, *sources: Table, **tables: Any) -> Path:
    """Write a recipe and return its path.

    Args:
        path: the file; relative paths of sources are relative to its folder.
        sources: tables from `source`.
        tables: the other tables and keys. The tokenizer has 300 entries unless its table says otherwise.
    """
    given = {"name": "small", "sources": list(sources), "tokenizer": {"vocab_size": 300}} | tables
    return write_file(path, "".join(f"{key} = {to_toml(value)}\n" for key, value in given.items()))


def write_small_recipe(folder: Path, **tables: Any) -> Path:
    """Write a recipe of 40 text files below `notes/`, which builds in seconds, with other tables if they are given."""
    (folder / "notes").mkdir()
    for index in range(40):
        text = f"note {index}: " + " ".join(f"word{index * word}" for word in range(60))
        (folder / f"notes/{index:02d}.txt").write_text(text)
    notes = source("notes", "notes/*.txt", format="file")
    return write_recipe(folder / "recipe.toml", notes, **{"shards": {"tokens": 2000}} | tables)


def faults_in(error: InputError) -> list[str]:
    """Return the faults of a recipe, without the file before each."""
    return [str(problem).partition(": ")[2] for problem in error.problems]


def faults_of(load: Callable[..., object], *arguments: str) -> list[str]:
    """Return the faults with which a recipe is refused."""
    with pytest.raises(InputError) as caught:
        load(*arguments)
    return faults_in(caught.value)


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file, in folders that are made if they are not there; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    """Write rows as JSON lines; return the path."""
    return write_file(path, to_lines(rows))


def to_lines(rows: Iterable[object]) -> str:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_texts(path: Path, texts: Iterable[str], column: str = "text") -> None:
    """Write JSON lines with a text each."""
    write_lines(path, ({column: text} for text in texts))


def to_toml(value: Any) -> str:
    """Return a value as TOML: tables inline, lists of tables one a line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {to_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + "".join(f"  {to_toml(item)},\n" for item in value) + "]"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(to_toml, value)) + "]"
    if isinstance(value, float | datetime.date | datetime.time):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def overrides(*changes: str) -> list[str]:
    """Return the arguments of a command that change keys: `KEY=VALUE` each."""
    return [part for change in changes for part in ("--set", change)]

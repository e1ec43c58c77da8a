"""Docstrings of installed source files, read without importing anything: the demo's prose and mathematics.

Files are parsed with `ast` in a few processes, and only those that look worth it: of the 118 MB of source in the demo's
environment, the 50 MB that are at least a fifth documentation hold 85% of all long docstrings. Strings handed to
`add_docstr` and `add_newdoc` count too: that is where torch and numpy document what they implement in C.
"""

import ast
import inspect
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shards.terminal.workers import map_tasks

MIN_CHARS = 300
"""Shorter docstrings say little more than the name they belong to."""

MIN_SHARE = 0.2
"""Files with less of their bytes in long triple-quoted strings are not parsed: half the time for 85% of the text."""

MAX_PROCESSES = 4
_FILES_PER_TASK = 64
_TRIPLE_QUOTED = re.compile(rb'"""(.*?)"""|\'\'\'(.*?)\'\'\'', re.DOTALL)
_SETTERS = ("add_docstr", "_add_docstr", "add_newdoc")
_BLOCKS = ("body", "orelse", "finalbody", "handlers")


SourceFile = tuple[str, str, str]
"""A Python file of an installed release, such as "numpy 2.4.6": the release, the path in its folder, and the file."""


class Docstring(NamedTuple):
    """One docstring: its text without the common indentation, and the object that carries it."""

    text: str
    release: str
    path: str
    name: str


def harvest_docstrings(files: Sequence[SourceFile]) -> list[Docstring]:
    """Return every docstring of at least `MIN_CHARS` characters, in file and line order.

    The result does not depend on the number of processes.
    """
    tasks = [files[start : start + _FILES_PER_TASK] for start in range(0, len(files), _FILES_PER_TASK)]
    parts = [part for _, part in map_tasks(_harvest_files, None, tasks, min(MAX_PROCESSES, os.cpu_count() or 1))]
    return [docstring for own in parts for docstring in own]


def parse_docstrings(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield (qualified name, text) of each long docstring of a well-documented file; the module's own name is empty.

    Raises:
        SyntaxError, ValueError: the file is not Python of this version, or is not decodable.
    """
    lengths = (match.end() - match.start() for match in _TRIPLE_QUOTED.finditer(content))
    if sum(length for length in lengths if length >= MIN_CHARS) <= MIN_SHARE * len(content):
        return
    for name, text in _walk(parse_source(content), ""):
        cleaned = inspect.cleandoc(text)
        if len(cleaned) >= MIN_CHARS:
            yield name, cleaned


def parse_source(content: bytes) -> ast.Module:
    """Return the syntax tree of a file with docstrings. Invalid escapes in other people's code are not reported.

    Raises:
        SyntaxError, ValueError: the file is not Python of this version, or is not decodable.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(content)


def _harvest_files(_: None, files: Sequence[SourceFile]) -> list[Docstring]:
    docstrings: list[Docstring] = []
    for release, path, file in files:
        try:
            found = list(parse_docstrings(Path(file).read_bytes()))
        except (OSError, SyntaxError, ValueError):  # gone; templates, and files for other versions of Python
            continue
        docstrings.extend(Docstring(text, release, path, name) for name, text in found)
    return docstrings


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Visit the statements that may have docstrings only: descending into expressions doubles the time."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node, clean=False)
        if text:
            yield prefix, text
    # Classes and functions may stand in any block, such as below an `if`.
    for block in _BLOCKS:
        for child in getattr(node, block, ()):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _walk(child, f"{prefix}.{child.name}".lstrip("."))
            elif isinstance(child, ast.Expr):
                yield from _given_docstrings(child.value, prefix)
            else:
                yield from _walk(child, prefix)


def _given_docstrings(call: ast.expr, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the text in `add_docstr(torch.abs, "...")`; one that is formatted at run time is not text yet."""
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", getattr(call.func, "id", "")) not in _SETTERS:
        return
    text = call.args[-1] if call.args else None
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        # The target is an expression, or a module's and an object's name as two strings.
        target = (a.value if isinstance(a, ast.Constant) else ast.unparse(a) for a in call.args[:-1])
        yield ".".join([prefix, *map(str, target)]).lstrip("."), text.value

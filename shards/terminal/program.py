"""The frame of a command: read a command line, run the command, print what it found, return the exit status.

A command is a module named in `tokenmill.__main__`. Its docstring is what `--help` explains; it has
`add_arguments(parser)`, and `run(options)`, which returns an `Outcome`, or an exit status if it has printed what it
found. Only the module of the command that was called is imported, and it imports what is heavy inside `run`, so that
`--help` is quick.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shards.errors import InputError
from shards.terminal.display import Table, print_json, print_lines, print_rows
from shards.terminal.exit_status import WHOLE
from shards.terminal.parser import Parser

Row = dict[str, Any]
"""A row of a table by its columns, or an object of JSON by its keys."""
Part = str | Table
"""What a command prints for people: a line, or a table."""
Shown = Iterable[Part]


@dataclass(frozen=True)
class Outcome:
    """What a command found.

    Attributes:
        data: the JSON object that `--json` prints.
        shown: what is printed without `--json`. A generator makes it only then.
        status: the exit status.
    """

    data: Mapping[str, Any]
    shown: Shown
    status: int = WHOLE


class _Paragraphs(argparse.HelpFormatter):
    """Wraps each paragraph of a description by itself; one with indented lines stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        filled = [part if "\n " in part else textwrap.fill(" ".join(part.split()), width) for part in paragraphs]
        return textwrap.indent("\n\n".join(filled), indent)


def command_parser(name: str, module: Any) -> Parser:
    """Return the parser of a command."""
    about = inspect.cleandoc(module.__doc__ or "")
    parser = Parser(prog=f"tokenmill {name}", description=about, formatter_class=_Paragraphs)
    module.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def call_command(name: str, module_name: str, arguments: Sequence[str]) -> int:
    """Run a command, print its outcome, and return the exit status."""
    module = importlib.import_module(module_name)
    options = command_parser(name, module).parse_args(arguments)
    # The address of a remote set is checked when it is opened.
    place = getattr(options, "set", None)
    if isinstance(place, Path) and not place.is_dir():
        raise InputError(f"{place}: no such folder. Give the folder that contains manifest.json.")
    outcome = module.run(options)
    if isinstance(outcome, int):  # the command has printed what it found, as it found it
        return outcome
    if options.json:
        print_json(dict(outcome.data))
        return outcome.status
    # A generator makes one part after another, so that the first lines come at once.
    for part in outcome.shown:
        if isinstance(part, str):
            print_lines([part])
        else:
            print_rows(part)
    return outcome.status

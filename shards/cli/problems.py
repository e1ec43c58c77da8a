"""The problems that validation finds, as commands print them, and errors about what a command line asks for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

from shards.errors import InputError, Problem
from shards.terminal.display import plain_table, printable, stdout_console

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_problems(problems: Sequence[Problem]) -> None:
    """Print a table of a set's problems; plain lines if stdout is not a terminal."""
    if not problems:
        return
    if not sys.stdout.isatty():
        for problem in problems:
            print(printable(f"error: {problem}"))
        return
    from rich.text import Text

    table = plain_table("kind", "where", "what is wrong", right=False)
    for problem in problems:
        table.add_row(problem.kind, Text(printable(problem.where)), Text(printable(problem.message)))
    stdout_console().print(table)


@contextlib.contextmanager
def value_errors() -> Generator[None]:
    """Turn a `ValueError` of the body, about what the command line asks for, into an `InputError`."""
    try:
        yield
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from error

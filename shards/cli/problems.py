"""The problems of a set, as commands print them: a table, lines, or JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shards.errors import Problem
from shards.terminal.display import plain_table, print_json, printable, stdout_console

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_problems(problems: Sequence[Problem]) -> None:
    """Print a table of a set's problems; plain lines if stdout is not a terminal."""
    if not problems:
        return
    if not sys.stdout.isatty():
        for problem in problems:
            print(printable(f"{problem.kind}: {problem.where}: {problem.message}"))
        return
    from rich.text import Text

    table = plain_table("kind", "where", "what is wrong", right=False)
    for problem in problems:
        table.add_row(problem.kind, Text(printable(problem.where)), Text(printable(problem.message)))
    stdout_console().print(table)


def print_set_problems(problems: Sequence[Problem], *, as_json: bool) -> None:
    """Print the problems for which a set cannot be used, as JSON or as a table."""
    if as_json:
        print_json({"problems": [problem.to_dict() for problem in problems]})
    else:
        print_problems(problems)

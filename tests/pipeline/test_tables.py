"""Tables of `build`, `plan` and `inspect` on terminals of several widths: no number or word is broken or left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.builds import call_here
from tests.support.terminal import run_in_terminals
from tokenmill.__main__ import main


@pytest.fixture(scope="module")
def commands(recipe: Path, expected: dict[str, str]) -> dict[str, list[str]]:
    """Return the command lines of three commands on one small set; the build has nothing left to do."""
    out = str(recipe.parent / "set")
    return {
        "build": ["build", str(recipe), "--out", out],
        "plan": ["plan", str(recipe)],
        "inspect": ["inspect", out],
    }


def words_of_tables(output: str) -> set[str]:
    """Return every number and word in the tables of a command whose stdout is no terminal."""
    rows = [line for line in output.splitlines() if re.match(r" [^ ─]", line)]
    return {word for row in rows for word in row.split()}


@pytest.mark.parametrize("name", ["build", "plan", "inspect"])
def test_no_number_and_no_word_is_broken(commands: dict[str, list[str]], name: str) -> None:
    arguments = commands[name]
    piped = call_here(main, *arguments).stdout
    words = words_of_tables(piped)
    assert len(words) > 30
    headers = [line for line in piped.splitlines() if re.match(r" source ", line)]
    assert len(headers) == 1, "a pipe gets every column in one block"
    widths = (40, 60, 80, 120)
    for columns, shown in zip(widths, run_in_terminals(arguments, columns=widths), strict=True):
        assert words <= {word.removesuffix(":") for word in shown.split()}, f"{columns} columns"
        tables = [line for line in shown.splitlines() if re.match(r" \S", line)]
        assert all(len(line.rstrip()) <= columns for line in tables)


def test_tables_on_a_pipe_are_as_wide_as_columns_says(
    commands: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = commands["inspect"]
    whole = call_here(main, *arguments).stdout
    for columns, widest in (("60", 60), ("0", 10_000), ("wide", 10_000)):
        monkeypatch.setenv("COLUMNS", columns)
        shown = call_here(main, *arguments).stdout
        assert words_of_tables(whole) <= {word.removesuffix(":") for word in shown.split()}
        assert max(len(line.rstrip()) for line in shown.splitlines() if re.match(r" \S", line)) <= widest
        assert (shown == whole) == (widest > 60)
        lines = [line for line in whole.splitlines() if line and not line.startswith(" ")]
        assert set(lines) <= set(shown.splitlines())  # sentences stay on one line

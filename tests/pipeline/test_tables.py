"""Tables of `build`, `plan` and `inspect` on terminals of several widths: no number or word is broken or left out."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.builds import call_here, run_in_terminal


@pytest.fixture(scope="module")
def commands(recipe: Path, expected: dict[str, str]) -> dict[str, list[str]]:
    """Return the command lines of three commands on one small set; the build has nothing left to do."""
    out = str(recipe.parent / "set")
    return {"build": ["build", str(recipe), "--out", out], "plan": ["plan", str(recipe)], "inspect": ["inspect", out]}


def table_lines(output: str) -> list[str]:
    return [line.rstrip() for line in output.splitlines() if re.match(r" \S", line)]


def words_of_tables(output: str) -> set[str]:
    """Return every number and word in the tables of a command whose stdout is no terminal."""
    rows = [line for line in output.splitlines() if re.match(r" [^ ─]", line)]
    return {word for row in rows for word in row.split()}


@pytest.mark.parametrize("name", ["build", "plan", "inspect"])
def test_no_number_and_no_word_is_broken(commands: dict[str, list[str]], name: str, monkeypatch: pytest.MonkeyPatch):
    arguments = commands[name]
    piped = call_here(*arguments).stdout
    words = words_of_tables(piped)
    assert len(words) > 30
    headers = [line for line in piped.splitlines() if re.match(r" source .* tokens", line)]
    assert len(headers) == 1, "a pipe gets every column in one block"
    for columns in (40, 60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = call_here(*arguments).stdout
        assert words <= {word.removesuffix(":") for word in shown.split()}, f"{columns} columns"
        assert all(len(line.rstrip()) <= columns for line in table_lines(shown))


def test_tables_are_as_wide_as_the_terminal_or_columns_says(
    commands: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
):
    arguments = commands["inspect"]
    whole = call_here(*arguments).stdout
    for columns in ("0", "wide"):
        monkeypatch.setenv("COLUMNS", columns)
        assert call_here(*arguments).stdout == whole
    monkeypatch.setenv("COLUMNS", "60")
    narrow = call_here(*arguments).stdout
    sentences = {line for line in whole.splitlines() if line and not line.startswith(" ")}
    assert sentences <= set(narrow.splitlines()), "on a pipe they stay on one line"
    assert table_lines(narrow) == table_lines(
        run_in_terminal([sys.executable, "-m", "tokenmill", *arguments], columns=60)
    )

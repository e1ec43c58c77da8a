"""The modules of the product, each with the first line of its docstring: what `make modules` prints."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "shards", "trainer", "tokenmill")


def list_modules() -> Iterator[tuple[str, str]]:
    """Yield the path of each module, and the first paragraph of its docstring in one line (empty without one)."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if text:
                docstring = ast.get_docstring(ast.parse(text)) or ""
                yield path.relative_to(ROOT).as_posix(), " ".join(docstring.partition("\n\n")[0].split())


if __name__ == "__main__":
    for path, line in list_modules():
        print(f"{path}: {line}")

"""The modules of the product with what they define: what `make modules` prints."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "shards", "trainer", "tokenmill")


def list_modules() -> Iterator[tuple[str, str]]:
    """Yield the path of each module, and the first paragraph of its docstring in one line (empty without one)."""
    for path in _list_paths():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        yield path.relative_to(ROOT).as_posix(), " ".join(docstring.partition("\n\n")[0].split())


def _list_paths() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if path.stat().st_size]


def _list_public_names(path: Path) -> Iterator[str]:
    """Yield a module's public functions and classes, each class with its public methods and properties."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            own = [part.name for part in ast.iter_child_nodes(node) if isinstance(part, ast.FunctionDef)]
            members = ", ".join(name for name in own if isinstance(node, ast.ClassDef) and not name.startswith("_"))
            yield f"{node.name} ({members})" if members else node.name


if __name__ == "__main__":
    for name, line in list_modules():
        print(f"{name}: {line}")
        if names := "; ".join(_list_public_names(ROOT / name)):
            print(textwrap.fill(names, 120, initial_indent="    ", subsequent_indent="    "))

"""The modules of the product with what they define: what `make modules` prints."""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "shards", "trainer", "tokenmill")


def list_modules() -> Iterator[tuple[str, ast.Module]]:
    """Yield the path and the syntax tree of each module that is not empty."""
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        if text := path.read_text(encoding="utf-8"):
            yield path.relative_to(ROOT).as_posix(), ast.parse(text)


def _list_public_names(tree: ast.Module) -> Iterator[str]:
    """Yield a module's public functions and classes, each class with its public methods and properties."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            own = [part.name for part in ast.iter_child_nodes(node) if isinstance(part, ast.FunctionDef)]
            members = ", ".join(name for name in own if isinstance(node, ast.ClassDef) and not name.startswith("_"))
            yield f"{node.name} ({members})" if members else node.name


if __name__ == "__main__":
    for name, tree in list_modules():
        print(f"{name}: {' '.join((ast.get_docstring(tree) or '').partition(chr(10) * 2)[0].split())}")
        if names := "; ".join(_list_public_names(tree)):
            print(textwrap.fill(names, 120, initial_indent="    ", subsequent_indent="    "))

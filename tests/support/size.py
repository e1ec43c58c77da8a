"""The size of the repository beside the table that limits it: `make check` runs it, and a rise is an edit of the table.

    python -m tests.support.size

Tokens are those of Python 3.11 without comments and docstrings: how much code a reader meets, whatever its lines.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests/size.toml"
PACKAGES = ("pipeline", "shards", "trainer", "tokenmill")
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
ENTRY = re.compile(r"^- \*\*", re.MULTILINE)
WORD = re.compile(r"\S+")


def count_tokens(text: str, tree: ast.Module) -> int:
    """Return the tokens of a file without comments and docstrings."""
    expressions = (
        node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )
    docstrings = {(node.lineno, node.col_offset) for node in expressions if isinstance(node.value.value, str)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in LAYOUT and token.start not in docstrings for token in tokens)


def measure(folders: tuple[str, ...]) -> dict[str, int]:
    """Return the files, lines, tokens, classes and error classes of all Python files below some folders."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    counted = {"files": len(paths), "lines": 0, "tokens": 0, "classes": 0, "error_classes": 0}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        counted["lines"] += text.count("\n")
        counted["tokens"] += count_tokens(text, tree)
        counted["classes"] += len(classes)
        counted["error_classes"] += sum(name.endswith("Error") for name in classes)
    return counted


def count_words(*pages: Path) -> int:
    """Return the words of some pages."""
    return sum(len(WORD.findall(page.read_text(encoding="utf-8"))) for page in pages)


def measure_all() -> dict[str, int]:
    """Return every count of the table by its name."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "recipes/README.md", ROOT / "shards/FORMAT.md"]
    product, tests = measure(PACKAGES), measure(("tests",))
    return {
        **{f"product_{name}": number for name, number in product.items()},
        **{f"test_{name}": tests[name] for name in ("lines", "tokens")},
        "glossary_words": len(ENTRY.findall((ROOT / "docs/glossary.md").read_text(encoding="utf-8"))),
        "page_words": count_words(*pages, *(ROOT / "docs").glob("*.md")),
        "lab_words": count_words(*(ROOT / "docs/lab").glob("*.md")),
        "changelog_words": count_words(ROOT / "CHANGELOG.md"),
    }


def main() -> int:
    """Print the counts beside their limits; return 1 if one is above its limit."""
    limits = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    if sys.version_info[:2] != (3, 11):
        print("size: not compared; tokens are counted as Python 3.11 has them")
        return 0
    found = measure_all()
    above = [name for name in limits if found[name] > limits[name]]
    for name, number in found.items():
        print(f"{name:<22} {number:>8,} of {limits[name]:>8,}{'  above' if name in above else ''}")
    if above:
        print(
            f"error: {', '.join(above)}: above {TABLE.relative_to(ROOT)}. Take something out, or raise the line there."
        )
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main())

"""The demo corpus: real text that every installation carries, as sources in Parquet.

Prose is the language reference, the packages' descriptions and docstrings; mathematics is docstrings with formulas of
mathematical packages; code is the functions and classes of the standard library. Deterministic for a given environment.
Questions ask what an object is, and the first paragraph of its docstring answers: conversations of one turn.
Long documents, drawn formulas and what repeats lines of others are left out: documentation says many things often.
Each row says where its text is from. It is documentation, not the web: good for seeing the product work, not for
judging a model. Takes about 10 s on two cores.

Of the documents that are too long, which no model of the corpus sees in training, the beginnings are an eval set.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
import importlib.metadata
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.demo.docstrings import MIN_CHARS, Docstring, SourceFile, harvest_docstrings, parse_source
from shards.stores.files import make_folder, write_bytes
from shards.terminal.reporter import Note

FOLDER = Path("out/demo-corpus")
"""Where the shipped recipe `demo` reads the corpus, relative to the working directory."""
SOURCES = ("docs-prose", "docs-maths", "stdlib-code", "questions")
HELD_OUT = "held-out"
"""What no source of the corpus has: a folder like theirs for an eval set."""

FILE = "part-00000.parquet"
"""The file of each source."""
ROW_GROUP_ROWS = 500

MAX_CHARS, MAX_CODE_CHARS = 6_000, 1_000
"""Longer documents, and longer functions and classes, are left out. The validation split has 4,500 tokens of code: one
class of many pages would be all of it."""
LONG_LINE = 30
"""Characters from which a line that an earlier document has counts as repeated."""
MAX_REPEATED = 0.07
"""Share of a document's characters in repeated lines. Of the docstrings of the demo's environment, a third have more:
of the same parameter, or copied from a base class."""

OWN_NAME = "tokenmill"
"""Tokenmill itself is left out: the corpus must not change when its README is edited."""

MATHEMATICAL = frozenset({"numpy", "torch", "sympy", "mpmath", "networkx", "scipy"})
MATHEMATICAL_MODULES = ("decimal.py", "fractions.py", "_pydecimal.py", "random.py", "statistics.py")
_DRAWN = re.compile("[\u239b-\u23b3]")
"""Pieces of large brackets: of formulas drawn in lines of characters, which no sentence has."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Halves of characters, which are not UTF-8."""
_FORMULA = re.compile(r":math:|\.\. math::|\\frac|\\sum|\$[^$\n]+\$")
_PYTHON = f"python {sys.version.split()[0]}"
_TEST_FOLDERS = frozenset({"test", "tests", "testing", "idle_test"})
_SITE_FOLDERS = frozenset({"site-packages", "dist-packages"})

MIN_ANSWER_CHARS, MAX_ANSWER_CHARS = 20, 300
"""A first paragraph of other lengths answers no question."""
EXCERPT_CHARS = 1_500
"""The beginning of a document is its first paragraphs, of at most so many characters."""


class Question(NamedTuple):
    """A question about an object, and the answer that its docstring gives."""

    prompt: str
    completion: str
    release: str
    path: str
    name: str

    @property
    def text(self) -> str:
        """Question and answer."""
        return self.prompt + self.completion


def gather_missing_corpus(*, note: Note) -> None:
    """Write the corpus to the folder where the demo's shipped recipes read it, unless all its sources are there."""
    if not all((FOLDER / source / FILE).is_file() for source in (*SOURCES, HELD_OUT)):
        note(f"demo: gathering the text of this installation into {FOLDER}")
        write_demo_corpus(FOLDER)


def write_demo_corpus(folder: Path) -> list[dict[str, Any]]:
    """Write the sources below a folder, as `<source>/part-00000.parquet`, and what is held out of them.

    A file that already holds the same bytes is left alone, so that a second run makes nothing downstream run again.

    Returns:
        One row per source: `name`, `documents`, `bytes` (UTF-8 bytes of text).
        Then one for the documents held out.

    Raises:
        InputError: the folder is another user's.
        OSError: it cannot be written.
    """
    make_folder(folder)
    summary: list[dict[str, Any]] = []
    prose, mathematics, long = _gather_documentation()
    sources = (prose, mathematics, _gather_code(), list(ask_questions([*prose, *mathematics])))
    gathered = zip((*SOURCES, HELD_OUT), (*sources, cut_excerpts(long)), strict=True)
    for name, documents in gathered:
        _write_source(folder / name, documents)
        text_bytes = sum(len(document.text.encode()) for document in documents)
        summary.append({"name": name, "documents": len(documents), "bytes": text_bytes})
    return summary


def _gather_documentation() -> tuple[list[Docstring], list[Docstring], list[Docstring]]:
    """Return prose, mathematics and what is too long.

    Mathematics has a formula and is of a mathematical package.
    """
    from pydoc_data.topics import topics

    releases = list(_installed())
    stdlib = Path(sysconfig.get_path("stdlib"))
    files = [source for distribution in releases for source in _python_files(distribution)]
    modules = [name for name in MATHEMATICAL_MODULES if (stdlib / name).is_file()]
    files += [(_PYTHON, name, str(stdlib / name)) for name in modules]
    # A document belongs to one of both; repeated ones are left out over both.
    prose, mathematics, long = list[Docstring](), list[Docstring](), list[Docstring]()
    reference = [Docstring(topics[name], _PYTHON, "pydoc_data/topics.py", name) for name in sorted(topics)]
    documents = [*reference, *_descriptions(releases), *harvest_docstrings(files)]
    for document in _distinct(documents, MAX_CHARS, long):
        package = document.release.split(" ")[0]
        is_formula = package in MATHEMATICAL and _FORMULA.search(document.text)
        is_mathematics = is_formula or document.path in MATHEMATICAL_MODULES
        (mathematics if is_mathematics else prose).append(document)
    return prose, mathematics, long


def _installed() -> Iterator[importlib.metadata.Distribution]:
    """Yield each installed distribution once, by name: the first on the path, which imports."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        found.setdefault(_normal_name(distribution), distribution)
    found.pop(OWN_NAME, None)
    yield from (found[name] for name in sorted(found))


def _normal_name(distribution: importlib.metadata.Distribution) -> str:
    return re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()


def _release(distribution: importlib.metadata.Distribution) -> str:
    return f"{_normal_name(distribution)} {distribution.version}"


def _python_files(distribution: importlib.metadata.Distribution) -> Iterator[SourceFile]:
    release = _release(distribution)  # once: it parses METADATA, which took half of the time when asked for each file
    for file in sorted(distribution.files or [], key=str):
        if file.suffix == ".py" and not _TEST_FOLDERS.intersection(file.parts) and ".." not in file.parts:
            yield release, file.as_posix(), str(distribution.locate_file(file))


def _descriptions(releases: Iterable[importlib.metadata.Distribution]) -> Iterator[Docstring]:
    for distribution in releases:
        body: Any = distribution.metadata.get_payload()  # pyright: ignore[reportAttributeAccessIssue]
        if body and len(body) >= MIN_CHARS:
            yield Docstring(body, _release(distribution), "METADATA", "")


def _distinct(documents: Iterable[Docstring], most: int, long: list[Docstring]) -> Iterator[Docstring]:
    """Yield the documents of at most so many characters that repeat little of earlier ones, and are UTF-8.

    Those that are only too long end up in `long`.
    """
    # A line counts as repeated if an earlier document that was kept has it.
    seen: set[str] = set()
    for document in documents:
        if document.text in seen or _repeats(document, seen):
            continue
        if len(document.text) > most:
            long.append(document)
        elif not _DRAWN.search(document.text) and not _SURROGATE.search(document.text):
            seen.update(_lines(document), [document.text])
            yield document
    # A later document may have the lines of a long one: what is held out must be new.
    long[:] = [document for document in long if not _SURROGATE.search(document.text) and not _repeats(document, seen)]


def _lines(document: Docstring) -> list[str]:
    return [line for line in map(str.strip, document.text.split("\n")) if len(line) >= LONG_LINE]


def _repeats(document: Docstring, seen: set[str]) -> bool:
    return sum(len(line) for line in _lines(document) if line in seen) > MAX_REPEATED * len(document.text)


def _gather_code() -> list[Docstring]:
    """Return code: functions and classes of the standard library, but no tests, nor generated files."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    # Their text as it stands in the file, with comments and decorators.
    found: list[Docstring] = []
    for file in sorted(stdlib.rglob("*.py")):
        path = file.relative_to(stdlib)
        if (_TEST_FOLDERS | _SITE_FOLDERS).intersection(path.parts) or path.name.startswith("_sysconfigdata"):
            continue
        try:
            definitions = list(_parse_definitions(file.read_bytes()))
        except (SyntaxError, ValueError):
            continue
        found += [Docstring(text, _PYTHON, f"Lib/{path.as_posix()}", name) for name, text in definitions]
    return list(_distinct(found, MAX_CODE_CHARS, []))


def _parse_definitions(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield name and text of each function and class of a module, without short or inner ones.

    Raises:
        SyntaxError, ValueError: the file is not Python of this version, or is not decodable.
    """
    lines = content.decode().split("\n")
    for node in parse_source(content).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            text = "\n".join(lines[first - 1 : node.end_lineno])
            if len(text) >= MIN_CHARS:
                yield node.name, text + "\n"


def ask_questions(documents: Iterable[Docstring]) -> Iterator[Question]:
    """Yield a question about each object whose docstring begins with a short paragraph that ends a sentence."""
    for document in documents:
        answer = " ".join(document.text.partition("\n\n")[0].split())
        has_object = document.name and document.path.endswith(".py")
        if has_object and answer.endswith(".") and MIN_ANSWER_CHARS <= len(answer) <= MAX_ANSWER_CHARS:
            module = document.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            yield Question(f"What is {module}.{document.name}?", answer, *document[1:])


def _write_source(folder: Path, documents: Sequence[Docstring | Question]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, sink = pa.Table.from_pylist([document._asdict() for document in documents]), pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=ROW_GROUP_ROWS)
    data, path = sink.getvalue().to_pybytes(), folder / FILE
    make_folder(folder)
    if not path.is_file() or path.read_bytes() != data:
        write_bytes(path, data)


def cut_excerpts(documents: Sequence[Docstring]) -> list[Docstring]:
    """Return the beginnings of documents, as whole paragraphs; those without a short first one have none."""
    excerpts: list[Docstring] = []
    for document in documents:
        text = document.text[: max(0, document.text.rfind("\n\n", 0, EXCERPT_CHARS))].rstrip()
        if len(text) >= MIN_CHARS:
            excerpts.append(document._replace(text=text))
    return excerpts

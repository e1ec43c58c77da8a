"""The language of documents, by a fastText model that the recipe names: `fasttext-predict`, one thread.

The model's file is loaded before a build begins, in a process of its own with a bound on memory: fastText never stops
reading a file that was cut off within its dictionary. It does not tell one that was cut off later: `#sha256=` does.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.clean_recipe import Language
from shards.errors import InputError, import_extra, unread
from shards.stores.files import hash_file
from shards.terminal.hints import nearest

_LABEL = "__label__"
_END = "</s>"
_SIGNS = re.compile(rf"(?<![^\s\0])({_END}|{_LABEL})+")
"""What fastText takes for the end of a text and for a label, at the beginning of a word."""
_LOADING_BYTES = 512 << 20
"""Memory that loading a model may take beside twice its file's size."""
_LIST_LABELS = """
import resource, sys, fasttext
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
print(*fasttext.load_model(sys.argv[1]).predict("a", k=1 << 20, threshold=-1)[0])
"""


def versions() -> list[str]:
    """Return the versions that decide which documents are dropped for their language."""
    return [version("fasttext-predict"), "2"]


def apply(table: Language, documents: Documents, tally: Tally) -> Documents:
    """Drop the documents that are in none of the languages to keep.

    Raises:
        InputError: the model's file has changed.
    """
    model = _open_model(table.file, table.model.sha256)
    wanted = {_LABEL + language for language in table.keep}
    found: dict[int, str] = {}
    for index, data in enumerate(documents.seen):
        line = _make_line(str(data[: table.first_bytes], "utf-8", "ignore"))
        labels, _ = model.predict(line, k=-1, threshold=table.min_score)
        if wanted.isdisjoint(labels):
            # None of the languages to keep scores enough: the best one says why.
            (best, *_), _ = model.predict(line, k=1)
            low = ", score below min_score" if best in wanted else ""
            found[index] = f"{table.step}: {best.removeprefix(_LABEL)}{low}"
    return tally.drop(table.step, documents, found)


def _make_line(text: str) -> str:
    """Return a text as the line that fastText reads, without words that are fastText's own."""
    line = text.replace("\n", " ")
    return _SIGNS.sub(" ", line) if _END in line or _LABEL in line else line


def check_model(path: str, sha256: str, keep: list[Any]) -> Iterator[str]:
    """Yield the faults of a language model's file, and of the languages to keep.

    Raises:
        MissingExtraError: `fasttext-predict` is not installed.
    """
    import_extra("fasttext")
    try:
        found = hash_file(Path(path))
        memory = 2 * Path(path).stat().st_size + _LOADING_BYTES
    except OSError as error:
        yield f"{path}: {unread(error, 'Name a model of fastText, such as lid.176.ftz.')}"
        return
    command = [sys.executable, "-P", "-c", _LIST_LABELS, path, str(memory)]
    listed = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    if listed.returncode:
        yield (
            f"{path}: not a fastText model, or a truncated one. Expected a file such as lid.176.ftz or lid.176.bin: "
            "fetch it again."
        )
        return
    languages = [label.removeprefix(_LABEL) for label in listed.stdout.split()]
    if sha256 not in ("", found):
        yield f"{path}: its SHA-256 is {found}, expected {sha256}: it is another model. Restore it."
    for language in keep:
        if isinstance(language, str) and language not in languages:
            yield f"{path}: the model has no language {language!r}.{nearest(language, languages)}"


@lru_cache(maxsize=2)
def _open_model(path: str, sha256: str) -> Any:
    if sha256 and hash_file(Path(path)) != sha256:
        raise InputError(f"{path}: its SHA-256 is not {sha256} any more. Restore the model")
    return import_extra("fasttext").load_model(path)

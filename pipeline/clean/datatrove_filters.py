"""datatrove's filters: constructed by name and asked document by document, as `datatrove.pipeline.filters` has them.

A document has its text and nothing else: no metadata, and its row as `id`. What a filter writes into it is not used.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from shards.config import nearest
from shards.errors import InputError, import_extra
from shards.terminal.display import printable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from pipeline.recipe.filters import DatatroveFilter

_MODULE = "datatrove.pipeline.filters"
REFUSED = {
    "C4BadWordsFilter": "it fetches its lists from the network, and draws at random in the order of the documents. "
    "Put words into drop_if_matches",
    "FastTextClassifierFilter": "it drops parts of documents by a model that may change unnoticed. "
    "[sources.clean.language] takes a fastText model",
    "LambdaFilter": "its function is code, which a recipe does not hold",
    "LanguageFilter": "it fetches its model from the network. [sources.clean.language] takes a model file",
    "SamplerFilter": "it draws at random in the order of the documents, which another number of workers changes. "
    "mix.tokens takes a part of the sources",
    "UnigramLogProbFilter": "it fetches its word counts from the network",
    "URLFilter": "it checks the URL of a document, but filters see only the text. `keep` checks columns",
}
"""Filters that a recipe cannot name, and why."""
_TRIAL = "The committee met on Monday and agreed that the new bridge would be open to everyone before the winter. " * 6


class FilterError(InputError):
    """A filter that failed on a document. The message names both."""

    def __init__(self, message: str, row: int = 0):
        super().__init__(message)
        self.args = (message, row)  # pickle rebuilds the error from these
        self.row = row

    def at(self, place: str, row: int) -> FilterError:
        """Return the error with the place of the document."""
        return FilterError(f"{printable(place)} row {row}: {self}", row)


def find_rejected(
    text: pa.LargeStringArray, rows: npt.NDArray[np.unsignedinteger], table: DatatroveFilter
) -> tuple[dict[int, str], int]:
    """Ask a filter about documents.

    Args:
        text: the documents, `(documents,)`, without nulls.
        rows: their rows.
        table: the filter.

    Returns:
        The rejected documents in order, each with its reason; and how many documents the filter changed.

    Raises:
        FilterError: it raised an error.
    """
    filter_ = _open_filter(table.filter, json.dumps(table.arguments, sort_keys=True))
    found: dict[int, str] = {}
    edited = 0
    for index, value in enumerate(text):
        original = str(value.as_py())
        try:
            kept, reason, after = _ask(filter_, original, str(rows[index]))
        except Exception as error:
            message = f"datatrove's {table.filter} failed: {type(error).__name__}: {printable(str(error))}"
            raise FilterError(
                f"{message}. Drop such documents before it (min_bytes, drop_if_matches), or leave the filter out.",
                int(rows[index]),
            ) from error
        edited += after != original
        if not kept:
            found[index] = f"{table.filter}: {reason}" if reason else table.filter
    return found, edited


def versions() -> list[str | None]:
    """Return the versions of datatrove and of the library that cuts its words, which decide what its filters reject."""
    return [_version("datatrove"), _version("spacy")]


def check_filter(name: str, arguments: Any) -> Iterator[str]:
    """Yield the faults of a filter that a recipe names: construct it, and try it on a few words.

    Raises:
        MissingExtraError: datatrove is not installed.
    """
    known = _filters()
    if name in REFUSED:
        yield f"{name} cannot be used: {REFUSED[name]}."
    elif name not in known:
        yield f"datatrove {version('datatrove')} has no filter {name!r}.{nearest(name, sorted(known.keys() - REFUSED))}"
    elif not isinstance(arguments, dict):
        return
    elif "exclusion_writer" in arguments:
        yield "exclusion_writer cannot be given: dropped documents are counted, not written."
    else:
        try:
            _ask(known[name](**arguments), _TRIAL, "0")
        except Exception as error:  # noqa: BLE001 (code of others)
            yield f"{name} cannot be used so: {type(error).__name__}: {printable(str(error))}"


def _ask(filter_: Any, text: str, id_: str) -> tuple[bool, str | None, str]:
    """Return whether a filter keeps a text, its reason, and the text as it leaves it."""
    from datatrove.data import Document
    from datatrove.pipeline.filters.base_filter import get_filter_result

    document = Document(text=text, id=id_)
    kept, reason = get_filter_result(filter_.filter(document))
    return bool(kept), reason, document.text


_opened = threading.local()


def _open_filter(name: str, arguments: str) -> Any:
    """Return a filter of this thread: a plan reads several parts of a source at once."""
    key = f"{name} {arguments}"
    if key not in _opened.__dict__:
        _opened.__dict__[key] = _filters()[name](**json.loads(arguments))
    return _opened.__dict__[key]


def _filters() -> dict[str, Any]:
    module = import_extra(_MODULE)
    base = module.base_filter.BaseFilter
    classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return {name: value for name, value in classes.items() if issubclass(value, base) and value is not base}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

"""A recipe's own Python functions: read with the modules that they import, loaded, checked, called on batches of texts.

The text of the modules is read once, before a build begins. It counts in the digests of tasks and travels with them: so
no worker or node opens the files, and an edit changes no running build. The modules are loaded from this text, under
names with its digest: an edit between two builds of one process counts, too. The batches depend on the files, so a
function must decide on each text alone; a part of every batch is asked twice to check that, at 6% of its time.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

import builtins
import hashlib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import decode_source, spec_from_loader
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.clean.tally import Documents, Tally
from shards.config import MAX_RECIPE_BYTES
from shards.errors import InputError, MissingExtraError, plural, shell_command
from shards.stores.files import read_file
from shards.terminal.display import printable

if TYPE_CHECKING:
    from pipeline.recipe.clean_recipe import DatatroveFilter, PythonFilter

Function: TypeAlias = Callable[[list[str]], Any]
"""What a recipe names: it takes texts and returns one value for each."""
CODE_VERSION = 1
"""Increase when the same function would drop or change other documents."""
MOST_REASONS = 100
"""Different reasons of one function in a task, and characters of each: they are counted, and no values."""
_ASKED_TWICE = 16
"""One text of a batch in so many is given to the function again."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def versions() -> list[int]:
    """Return the versions that decide what becomes of a document, beside the modules of its function."""
    return [CODE_VERSION]


def apply(table: PythonFilter, documents: Documents, tally: Tally) -> Documents:
    """Drop and change documents as the function of a recipe says; see `judge`."""
    return judge(table, load_function(table), documents, tally)


def judge(table: PythonFilter | DatatroveFilter, function: Function, documents: Documents, tally: Tally) -> Documents:
    """Drop and change documents as a recipe's function says, or drop them as a filter of datatrove says.

    Raises:
        InputError: it fails, returns something else, or does not return the same for the same text.
    """

    def where(index: int) -> str:
        return f"{tally.describe_row(int(documents.rows[index]))}: {table.step}"

    def ask(chosen: range) -> list[Any]:
        try:
            found = function([texts[index] for index in chosen])
        except (Exception, SystemExit) as error:
            # Asked one by one, the text that fails is found.
            for index in chosen if len(chosen) > 1 else ():
                ask(range(index, index + 1))
            raise InputError(
                f"{where(chosen[0])} failed: {_describe_error(error)}. Correct it, or drop such documents before it "
                "(min_bytes, drop_if_matches)."
            ) from error
        if not isinstance(found, list | tuple | np.ndarray) or len(found) != len(chosen):
            answers = plural(len(found), "answer") if isinstance(found, list | tuple) else f"{found!r:.100}"
            raise InputError(
                f"{where(chosen[0])} returned {answers} for {len(chosen):,} texts. Expected a list with one for each."
            )
        return [value.item() if isinstance(value, np.generic) else value for value in found]

    texts: list[Any] = documents.text.to_pylist()
    verdicts = ask(range(len(texts)))
    # In another order and company: a function that draws, counts or remembers says something else.
    again = range(len(texts) - 1, -1, -_ASKED_TWICE)
    for index, verdict in zip(again, ask(again), strict=True):
        if repr(verdict) != repr(verdicts[index]):
            raise InputError(
                f"{where(index)} returned {verdicts[index]!r:.100}, and {verdict!r:.100} when asked again. A rule must "
                "always give the same answer for the same text."
            )
    dropped: dict[int, str] = {}
    for index, verdict in enumerate(verdicts):
        match verdict:
            case None | True:
                pass
            case False | "" if verdict is False or table.name == "python":
                dropped[index] = table.step
            case (False, str(reason)):
                dropped[index] = f"{table.step}: {printable(reason):.{MOST_REASONS}}".removesuffix(": ")
            case str() if not _SURROGATE.search(verdict):
                tally.edited.update([table.label] if verdict != texts[index] else [])
                texts[index] = verdict
            case _:
                raise InputError(
                    f"{where(index)} returned {verdict!r:.200}. Expected None or True to keep the text; False or "
                    "(False, REASON) to drop it; or a new text, in valid UTF-8."
                )
    if table.name == "python":  # what a filter of datatrove writes into a text is not used
        documents = Documents(pa.array(texts, pa.large_string()), documents.rows)
    left = tally.drop(table.step, documents, dropped)
    if len(tally.drops.step(table.step).reasons) > MOST_REASONS:
        raise InputError(
            f"{where(0)} returned over {MOST_REASONS} different reasons. Expected few, each a kind of document."
        )
    return left


def _describe_error(error: BaseException) -> str:
    """Return an error of a recipe's function, and the line of its modules that raised it."""
    files, frames = dict(_texts.values()), traceback.extract_tb(error.__traceback__)
    own = [f" ({frame.filename}, line {frame.lineno})" for frame in frames if frame.filename in files]
    return f"{type(error).__name__}: {printable(str(error))}{own[-1] if own else ''}"


def read_function(table: PythonFilter) -> PythonFilter:
    """Return the `clean` table of a Python function with its module and those that this imports; nothing of it is run.

    Raises:
        InputError: a module cannot be read, or is not the one that the recipe pins.
        MissingExtraError: a package that the table names is not installed.
    """
    folder, module, _, sha256 = table.parts
    try:
        # A folder of data may have the name of an installed package.
        data = [name for name in os.listdir(folder) if not os.path.exists(f"{folder}/{name}/__init__.py")]
        finder = ModuleFinder([folder], excludes=[name for name in data if f"{name}.py" not in data])
        # A syntax error in a module that it imports is only told to `msg`, which stops at it here.
        vars(finder)["msg"] = _raise_syntax_error
        finder.import_hook(module)
        files = sorted(file for one in finder.modules.values() if (file := vars(one)["__file__"]))
        found = {file: decode_source(read_file(Path(file), MAX_RECIPE_BYTES)) for file in files}
    except (OSError, SyntaxError, ValueError, ImportError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{folder}: cannot read the module of {table.step}: {error}. Put it there, or correct it or the recipe."
        ) from error
    text = json.dumps([(file.removeprefix(folder), module) for file, module in found.items()])
    now = hashlib.sha256(text.encode()).hexdigest()
    if sha256 not in ("", now):
        raise InputError(
            f"{', '.join(found)}: the SHA-256 is {now}, expected {sha256}: the function has changed. Restore it, or "
            "build from a recipe without its SHA-256."
        )
    return table.pinned(now, found, _pin_packages(table))


def _raise_syntax_error(*said: object) -> None:
    if "SyntaxError:" in said:
        raise


def installed_version(package: str) -> str | None:
    """Return the version of a package that a filter needs; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _pin_packages(table: PythonFilter) -> list[str]:
    """Return the packages of a recipe's function, each with the version that is installed."""
    pinned: list[str] = []
    for package in table.packages:
        name, _, wanted = package.partition("==")
        found = installed_version(name)
        if found is None or wanted not in ("", found):
            command = shell_command("pip", "install", package)
            raise MissingExtraError(
                f"{table.step} needs {package}; installed is {found or 'none'}. Install it: {command}"
            )
        pinned.append(f"{name}=={found}")
    return pinned


_loaded: dict[str, Function] = {}
_texts: dict[str, tuple[str, str]] = {}
"""The path and text of each module of recipes' functions, by the name under which it is loaded."""


def load_function(table: PythonFilter) -> Function:
    """Return a recipe's function, loaded from the text of its modules; a process loads it once.

    Raises:
        InputError: its modules cannot be imported, or lack it.
        MissingExtraError: this node has not the packages of the driver.
    """
    key = f"{table.function} {table.packages}"
    if key not in _loaded:
        _pin_packages(table)
        folder, module, name, sha256 = table.parts
        root = f"recipe_{sha256[:12]}"
        _texts[root] = ("__init__.py", "")
        for file, text in table.modules.items():
            path = file.removeprefix(f"{folder}/").removesuffix(".py").removesuffix("/__init__")
            _texts[f"{root}.{path.replace('/', '.')}"] = (file, text)
        if _MODULES not in sys.meta_path:
            sys.meta_path.append(_MODULES)
        try:
            found: Any = getattr(import_module(f"{root}.{module}"), name, None)
        except (Exception, SystemExit) as error:
            raise InputError(f"{table.step} cannot be imported: {_describe_error(error)}.") from error
        if hasattr(found, "filter") and hasattr(found, "run"):  # a filter of datatrove
            found = partial(ask_datatrove, found)
        if not callable(found):
            raise InputError(f"{table.step}: {module}.py has no function {name!r}. Add it, or correct the recipe.")
        _loaded[key] = found
    return _loaded[key]


def ask_datatrove(filter_: Any, texts: list[str]) -> list[Any]:
    """Return what a filter of datatrove says of each text, as a recipe's function says it."""
    from datatrove.data import Document
    from datatrove.pipeline.filters.base_filter import get_filter_result

    found: list[Any] = []
    for text in texts:
        document = Document(text=text, id="")
        kept, reason = get_filter_result(filter_.filter(document))
        found.append(document.text if kept else (False, reason or ""))
    return found


class _Modules(MetaPathFinder, Loader):
    """Finds and loads the modules of recipes' functions by their text, as `sys.meta_path` asks."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return a module's spec, if it is of a recipe's function."""
        if name not in _texts:
            return None
        return spec_from_loader(name, self, is_package=_texts[name][0].endswith("__init__.py"))

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's text: beside it are the modules of its folder; it prints on stderr."""
        module.__file__, text = _texts[module.__name__]
        root = module.__name__.partition(".")[0]

        def import_(name: str, *given: Any) -> Any:
            first = name.partition(".")[0]
            if f"{root}.{first}" not in _texts or given[3]:  # of elsewhere, or relative
                return builtins.__import__(name, *given)
            found = builtins.__import__(f"{root}.{name}", *given)
            return found if given[2] else getattr(found, first)

        # Under the plain name, `import helper` would find the helper of an earlier build, or another one of `sys.path`.
        module.__dict__["__builtins__"] = vars(builtins) | {
            "__import__": import_,
            "print": partial(print, file=sys.stderr),
        }
        exec(compile(text, module.__file__, "exec", dont_inherit=True), vars(module))


_MODULES = _Modules()

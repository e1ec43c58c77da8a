"""A recipe's own Python functions: read with the modules that they import, loaded, checked, called on batches of texts.

The text of the modules is read once, before a build begins. It counts in the digests of tasks and travels with them: so
no worker or node opens the files, and an edit changes no running build. The modules are loaded from this text, under
names with its digest: an edit between two builds of one process counts, too. The batches depend on the files, so a
function must decide on each text alone; a part of every batch is asked twice to check that, at 6 % of its time.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

import builtins
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from glob import glob
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import decode_source, spec_from_loader
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from pipeline.clean.datatrove import ask_filter, installed_version
from pipeline.clean.tally import Documents, Tally
from shards.config import MAX_RECIPE_BYTES, read_file
from shards.errors import InputError, MissingExtraError
from shards.terminal.display import printable

if TYPE_CHECKING:
    from pipeline.recipe.clean_recipe import PythonFilter

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
    """Drop and change documents as the function of a recipe says.

    Raises:
        InputError: it fails, returns something else, or does not return the same for the same text.
    """

    def where(index: int) -> str:
        return f"{tally.describe_row(int(documents.rows[index]))}: {table.step}"

    texts: list[Any] = documents.text.to_pylist()
    verdicts = _ask(table, dict(enumerate(texts)), where)
    # In another order and company: a function that draws, counts or remembers says something else.
    again = {index: texts[index] for index in range(len(texts) - 1, -1, -_ASKED_TWICE)}
    for index, verdict in _ask(table, again, where).items():
        if repr(verdict) != repr(verdicts[index]):
            raise InputError(
                f"{where(index)} returned {verdicts[index]!r:.100}, and {verdict!r:.100} when asked again. Expected "
                "the same for the same text, whatever the time, chance, and the other texts."
            )
    dropped: dict[int, str] = {}
    for index, verdict in verdicts.items():
        match verdict:
            case None | True:
                pass
            case False | "":
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
    documents = Documents(pa.array(texts, pa.large_string()), documents.rows)
    left = tally.drop(table.step, documents, dropped)
    if len(tally.drops.step(table.step).reasons) > MOST_REASONS:
        raise InputError(
            f"{where(0)} returned over {MOST_REASONS} different reasons. Expected few, each a kind of document."
        )
    return left


def _ask(table: PythonFilter, texts: dict[int, str], where: Callable[[int], str]) -> dict[int, Any]:
    """Return what a recipe's function says of some texts, by their index; `where` begins an error about one."""
    first, *others = texts
    try:
        found = load_function(table)(list(texts.values()))
    except (Exception, SystemExit) as error:
        # Asked one by one, the text that fails is found.
        for index in texts if others else ():
            _ask(table, {index: texts[index]}, where)
        raise InputError(f"{where(first)} failed: {_describe_error(table, error)}") from error
    if not isinstance(found, list | tuple | np.ndarray) or len(found) != len(texts):
        expected = f"a list of {len(texts):,}, one for each text"
        raise InputError(f"{where(first)} returned {found!r:.200}. Expected {expected}.")
    values = [value.item() if isinstance(value, np.generic) else value for value in found]
    return dict(zip(texts, values, strict=True))


def _describe_error(table: PythonFilter, error: BaseException) -> str:
    """Return an error of a recipe's function, and the line of its modules that raised it."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in table.modules]
    line = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {printable(str(error))}{line}."


def read_function(table: PythonFilter) -> PythonFilter:
    """Return the `clean` table of a Python function with its module and those that this imports; nothing of it is run.

    Raises:
        InputError: a module cannot be read, or is not the one that the recipe pins.
        MissingExtraError: a package that the table names is not installed.
    """
    folder, module, _, sha256 = table.parts
    try:
        # A folder of data may have the name of an installed package.
        data = [name for name in os.listdir(folder) if not glob(f"{folder}/{name}/__init__.py")]
        finder = ModuleFinder([folder], excludes=[name for name in data if f"{name}.py" not in data])
        finder.import_hook(module)
        files = sorted(filter(None, (vars(one)["__file__"] for one in finder.modules.values())))
        found = {file: decode_source(read_file(Path(file), MAX_RECIPE_BYTES)) for file in files}
    except (OSError, SyntaxError, ValueError, ImportError, AttributeError, RecursionError) as error:
        raise InputError(f"{folder}: cannot read the module of {table.step}: {error}.") from error
    pinned = table.pinned(found, _pin_packages(table))
    if sha256 not in ("", pinned.parts[3]):
        raise InputError(
            f"{', '.join(files)}: the SHA-256 is {pinned.parts[3]}, expected {sha256}: the function has changed. "
            "Restore it, or build from a recipe without its SHA-256."
        )
    return pinned


def _pin_packages(table: PythonFilter) -> list[str]:
    """Return the packages of a recipe's function, each with the version that is installed."""
    pinned: list[str] = []
    for package in table.packages:
        name, _, wanted = package.partition("==")
        found = installed_version(name)
        if found is None or wanted not in ("", found):
            has = f"{name} {found}" if found else f"no {name}"
            raise MissingExtraError(f"{table.step} needs {package}, here is {has}: pip install '{package}'")
        pinned.append(f"{name}=={found}")
    return pinned


_loaded = threading.local()
_texts: dict[str, tuple[str, str]] = {}
"""The path and text of each module of recipes' functions, by the name under which it is loaded."""


def load_function(table: PythonFilter) -> Callable[[list[str]], Any]:
    """Return a recipe's function, as this thread has loaded it: a plan reads several parts of a source at once.

    Raises:
        InputError: its modules cannot be imported, or lack it.
        MissingExtraError: this node has not the packages of the driver.
    """
    key = f"{table.function} {table.packages}"
    if key not in _loaded.__dict__:
        _pin_packages(table)
        folder, module, name, sha256 = table.parts
        root = f"recipe_{sha256}"
        _texts[root] = ("__init__.py", "")
        for file, text in table.modules.items():
            path = file.removeprefix(f"{folder}/").removesuffix(".py").removesuffix("/__init__")
            _texts[f"{root}.{path.replace('/', '.')}"] = (file, text)
        if (this := cast("Any", sys.modules[__name__])) not in sys.meta_path:
            sys.meta_path.append(this)
        try:
            found: Any = getattr(import_module(f"{root}.{module}"), name, None)
        except (Exception, SystemExit) as error:
            raise InputError(f"{table.step} cannot be imported: {_describe_error(table, error)}") from error
        if not callable(found):
            raise InputError(f"{table.step}: the module in {folder} has no such function. Correct the name.")
        if hasattr(found, "filter") and hasattr(found, "run"):  # a filter of datatrove
            found = partial(_ask_datatrove, found)
        _loaded.__dict__[key] = found
    return _loaded.__dict__[key]


def _ask_datatrove(filter_: Any, texts: list[str]) -> list[Any]:
    answers = [ask_filter(filter_, text, "") for text in texts]
    return [after if kept else (False, reason or "") for kept, reason, after in answers]


# This module is the finder and the loader of modules of recipes' functions.


def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
    """Find a module of a recipe's function, as a finder of `sys.meta_path` does."""
    if name not in _texts:
        return None
    is_package = _texts[name][0].endswith("__init__.py")
    return spec_from_loader(name, cast("Any", sys.modules[__name__]), is_package=is_package)


def create_module(spec: ModuleSpec) -> None:
    """Leave it to Python to create the module of a recipe's function."""


def exec_module(module: ModuleType) -> None:
    """Run the text of a module of a recipe's function: beside it are the modules of its folder; it prints on stderr."""
    module.__file__, text = _texts[module.__name__]
    root = module.__name__.partition(".")[0]

    def import_(name: str, globals_: Any = None, locals_: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        first = name.partition(".")[0]
        if level or f"{root}.{first}" not in _texts:
            return builtins.__import__(name, globals_, locals_, fromlist, level)
        found = builtins.__import__(f"{root}.{name}", globals_, locals_, fromlist)
        return found if fromlist else getattr(found, first)

    def print_(*values: Any, **options: Any) -> None:
        options.setdefault("file", sys.stderr)
        print(*values, **options)

    module.__dict__["__builtins__"] = vars(builtins) | {"__import__": import_, "print": print_}
    exec(compile(text, module.__file__, "exec"), vars(module))

"""A recipe's own Python functions: which modules and packages they are made of, and who allows them to run.

The text of the modules is read once, before a build begins; nothing of it is run. It counts in the digests of tasks and
travels with them: so no worker or node opens the files, and an edit changes no running build.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
import ast
import hashlib
import json
import os
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import decode_source
from io import BytesIO
from modulefinder import ModuleFinder
from pathlib import Path
from tokenize import detect_encoding
from typing import Any

from pipeline.recipe.clean_recipe import PythonFilter
from pipeline.recipe.key_values import normal_encoding
from pipeline.recipe.schema import SourceRecipe
from shards.config import MAX_RECIPE_BYTES
from shards.errors import InputError, MissingExtraError, shell_command
from shards.stores.files import read_file

_SOURCE, _PACKAGE = 1, 5
"""The kinds of modules, as a `ModuleFinder` has them."""


class _SourceFinder(ModuleFinder):
    """Finds the modules of a folder by their text, also those that Python comes with; it opens nothing else."""

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        for folder in path or self.path:
            package, file = f"{folder}/{name}", f"{folder}/{name}.py"
            if os.path.lexists(f"{package}/__init__.py"):  # other folders are data
                return None, package, ("", "", _PACKAGE)
            if os.path.lexists(file):
                content = read_file(Path(file), MAX_RECIPE_BYTES)
                normal_encoding(detect_encoding(BytesIO(content).readline)[0])  # some codecs take hours
                # Its imports alone, since a `ModuleFinder` compiles it: each nested `finally` would double the code.
                tree = ast.parse(content, file)
                tree.body = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
                return BytesIO(ast.unparse(tree).encode()), file, (".py", "rb", _SOURCE)
        raise ImportError


def read_function(table: PythonFilter, *, allow_code: bool) -> PythonFilter:
    """Return the `clean` table of a Python function with its module and those that this imports; nothing of it is run.

    Args:
        table: the table.
        allow_code: whether the function may run: the person has said so in this call.

    Raises:
        InputError: a module cannot be read, or is not the one that the recipe pins.
        MissingExtraError: a package that the table names is not installed.
    """
    (folder, module, _), sha256 = table.parts, table.function.sha256
    try:
        finder = _SourceFinder([folder])
        # A syntax error in a module that it imports is only told to `msg`, which stops at it here.
        vars(finder)["msg"] = _raise_syntax_error
        finder.import_hook(module)
        files = {name: vars(one)["__file__"] for name, one in finder.modules.items()}
        found = {name: (file, decode_source(read_file(Path(file), MAX_RECIPE_BYTES))) for name, file in files.items()}
    except (OSError, SyntaxError, ValueError, ImportError, AttributeError, RecursionError, MemoryError) as error:
        why = str(error) or "it is nested too deeply"  # the parser's MemoryError
        raise InputError(
            f"{folder}: cannot read the module of {table.step}: {why}. A module NAME is the file NAME.py there, "
            "or NAME/__init__.py for a package. Correct it or the recipe."
        ) from error
    text = json.dumps([(file.removeprefix(folder), module) for file, module in sorted(found.values())])
    now = hashlib.sha256(text.encode()).hexdigest()
    if sha256 not in ("", now):
        raise InputError(
            f"{', '.join(sorted(files.values()))}: the SHA-256 is {now}, expected {sha256}: the function has changed. "
            "Restore it, or build from a recipe without its SHA-256."
        )
    return table.pinned(now, found, pin_packages(table), allow_code=allow_code)


def check_allowed(sources: Iterable[SourceRecipe]) -> list[PythonFilter]:
    """Return the functions of sources, none of which has run.

    Raises:
        InputError: with each that nobody has allowed to run.
    """
    tables = [table for source in sources for table in source.clean.python or ()]
    if refused := {describe_refusal(table): "" for table in tables if not table.is_allowed}:
        raise InputError(list(refused))
    return tables


def describe_refusal(table: PythonFilter) -> str:
    """Return what is said of a function that nobody has allowed to run."""
    return (
        f"{find_file(table)}: {table.step} is a function of the recipe, and runs only if you allow it. Read the "
        "file, then give --allow-code (in Python, allow_code=True)."
    )


def find_file(table: PythonFilter) -> str:
    """Return the file of a recipe's function."""
    return table.modules[table.parts[1]][0]


def _raise_syntax_error(*said: object) -> None:
    if "SyntaxError:" in said:
        raise


def installed_version(package: str) -> str | None:
    """Return the version of a package that a filter needs; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def pin_packages(table: PythonFilter) -> list[str]:
    """Return the packages of a recipe's function, each with the version that is installed.

    Raises:
        MissingExtraError: one is not installed, or in another version.
    """
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

"""The paths that a recipe names: relative to the folder of the recipe's file, wherever a command runs.

Paths given by `--set` on a command line are relative to the working directory, as a person who types them expects. A
set's recipe.json names paths as the recipe did: the work folder of its build says where they begin.
"""

from __future__ import annotations

import glob
import os
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, SerializationInfo, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from shards.config import TypedText
from shards.stores.store import Store, WritableStore
from shards.terminal.shipped_recipes import shipped_folder

SHIPPED = shipped_folder("data")
"""The folder of the data recipes that come with the distribution."""

AS_WRITTEN = "as written"
"""The context of serialization in which paths are those of the recipe's file."""


class RecipePath(str):
    """A path or glob of a recipe as it is found from any working directory, or a URL.

    Validation makes it from what the recipe says, whose folder is the context.
    """

    written: str
    """The path as the recipe's file has it, with its SHA-256 if it is pinned."""

    def __new__(cls, located: str, written: str | None = None) -> Self:
        """Return a recipe's path; `written` is the same text if it is not given."""
        path = super().__new__(cls, located)
        path.written = located if written is None else written
        return path

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads and writes a recipe's path."""
        return core_schema.with_info_wrap_validator_function(
            partial(_read, cls),
            core_schema.str_schema(min_length=1),
            serialization=core_schema.plain_serializer_function_ser_schema(_write, info_arg=True),
        )

    @property
    def file(self) -> str:
        """The path of a recipe without the SHA-256 behind it."""
        return self.partition(DIGEST_MARK)[0]

    @property
    def name(self) -> str:
        """The same as the recipe's file has it."""
        return self.written.partition(DIGEST_MARK)[0]

    @property
    def sha256(self) -> str:
        """The SHA-256 behind a recipe's path; empty if it has none."""
        return self.partition(DIGEST_MARK)[2]

    def pinned(self, sha256: str) -> RecipePath:
        """Return a recipe's path of a file with its SHA-256 behind it."""
        return RecipePath(f"{self}{DIGEST_MARK}{sha256}", f"{self.written}{DIGEST_MARK}{sha256}")


class RecipeGlob(RecipePath):
    """A glob in a recipe. Wildcards in the path of the recipe's own folder are literal."""


_MOST_PARTS = 200
"""Folders in a glob. The search recurses once per folder."""
DIGEST_MARK = "#sha256="
"""What separates a file's path from its SHA-256 in a resolved recipe."""


def _read(
    kind: type[RecipePath], value: Any, handler: core_schema.ValidatorFunctionWrapHandler, info: ValidationInfo
) -> RecipePath:
    text: str = handler(value)
    if kind is RecipeGlob and text.count("/") > _MOST_PARTS:
        raise ValueError(f"expected at most {_MOST_PARTS} folders in a path")
    return value if isinstance(value, RecipePath) else locate(info.context or Path(), value, kind)


def _write(path: str, info: SerializationInfo) -> str:
    return path.written if info.context == AS_WRITTEN and isinstance(path, RecipePath) else str(path)


def locate(folder: Path, path: str, kind: type[RecipePath] = RecipePath) -> RecipePath:
    """Return a path or glob of a recipe in a folder, or one of an override."""
    found = os.path.expanduser(path)
    if not path or "://" in path or os.path.isabs(found):
        return kind(found, path)
    escape = glob.escape if kind is RecipeGlob else str
    begin = escape(str(folder))
    if isinstance(path, TypedText):
        located = _join_local(Path(escape(os.getcwd())), path)
        return kind(located, os.path.relpath(located, begin))
    return kind(_join_local(Path(begin), path), path)


def explain_path(folder: Path, path: str) -> str:
    """Return the remedy for a path: what folder a relative one begins at, and how to write it if it is right from the
    working directory."""
    if "://" in path or os.path.isabs(path):
        return "Correct the path."
    rule = f"Paths begin at the recipe's folder, {folder}; paths of --set and --source at the working directory"
    # Most such errors are a path that is right from where the person is.
    here = locate(folder, TypedText(path))
    if here != locate(folder, path) and glob.glob(here, recursive=True):
        return f"{rule}. There are files at {here}: write {here.written!r} in the recipe."
    return f"{rule}. Correct the path."


def _join_local(folder: Path, path: str) -> str:
    """Join a recipe's path to its folder without `..` in the middle; a glob's own `..` after a wildcard stays."""
    while path.startswith(("../", "./")):
        first, path = path.split("/", 1)
        folder = folder.parent if first == ".." else folder
    return os.path.join(folder, path.lstrip("/"))


RECIPE_FOLDER_FILE = "recipe-folder"


def find_recipe_folder(work: Store) -> Path | None:
    """Return the folder at which the relative paths of a set's recipe.json begin, by the work folder of its build; None
    if that does not say it.

    Raises:
        OSError, InputError: the store cannot be read.
        ValueError: the file that says it is not UTF-8.
    """
    try:
        stated = work.read(RECIPE_FOLDER_FILE).decode().rstrip("\n")
    except FileNotFoundError:
        return None
    return Path(os.path.normpath(os.path.join(work.folder.absolute(), stated) if work.folder else stated))


def state_recipe_folder(work: WritableStore, folder: Path | None) -> None:
    """State in a work folder where the relative paths of a set's recipe.json begin; None: it has none.

    Raises:
        OSError, InputError: the store cannot be written.
    """
    if folder is None:
        if work.find(RECIPE_FOLDER_FILE) is not None:
            work.delete(RECIPE_FOLDER_FILE)
        return
    # Relative in a folder: work folder and files can be moved together.
    stated = os.path.relpath(folder, work.folder.absolute()) if work.folder else os.path.abspath(folder)
    content = f"{stated}\n".encode()
    if work.find(RECIPE_FOLDER_FILE) is None or work.read(RECIPE_FOLDER_FILE) != content:
        work.put(RECIPE_FOLDER_FILE, content)

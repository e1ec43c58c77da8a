"""The folder that the paths of a set's recipe.json are relative to: a hidden file next to it, not part of the set.

`recipe.json` names files as the recipe did, so that it has the same bytes wherever the set is kept. The folder of that
recipe is a fact of this copy of the set. In a folder it is stated relative to it, so that set and files can be moved
together; no path leads from a bucket to a machine, so there it begins at the root. Without the file,
paths begin at the set's folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from shards.stores.store import Store, WritableStore

RECIPE_FOLDER_FILE = ".recipe-folder"


def find_recipe_folder(store: Store) -> Path | None:
    """Return the folder at which the relative paths of a set's recipe.json begin; None if nothing says it.

    Raises:
        OSError, InputError: the store cannot be read.
        ValueError: the file that says it is not UTF-8.
    """
    try:
        stated = store.read(RECIPE_FOLDER_FILE).decode().rstrip("\n")
    except FileNotFoundError:
        return store.folder
    return Path(os.path.normpath(os.path.join(store.folder.absolute(), stated) if store.folder else stated))


def state_recipe_folder(store: WritableStore, folder: Path | None) -> None:
    """State the folder that the paths of a set's recipe.json are relative to; None says that it has no such paths.

    Raises:
        OSError, InputError: the store cannot be written.
    """
    if folder is None:
        if store.find(RECIPE_FOLDER_FILE) is not None:
            store.delete(RECIPE_FOLDER_FILE)
        return
    # Relative in a folder: set and files can be moved together.
    stated = os.path.relpath(folder, store.folder.absolute()) if store.folder else os.path.abspath(folder)
    content = f"{stated}\n".encode()
    if store.find(RECIPE_FOLDER_FILE) is None or store.read(RECIPE_FOLDER_FILE) != content:
        store.put(RECIPE_FOLDER_FILE, content)

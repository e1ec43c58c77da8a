"""The two places of a build, its set and its work folder: what they may hold, and how other builds are kept away."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress

from pipeline.builder.publish import RECIPE_FILE, SHARD_FILE, TEMPORARY
from pipeline.builder.stages.fetch import needs_fetch
from pipeline.engine.lease import Lease
from pipeline.recipe.recipe_folder import RECIPE_FOLDER_FILE
from pipeline.recipe.schema import Recipe
from pipeline.tokenizer.train import TOKENIZER_FILE
from shards.errors import InputError
from shards.format.manifest import MANIFEST_FILE
from shards.stores.files import lock_folder
from shards.stores.object_store import require_abilities
from shards.stores.store import WritableStore

_WORK_NAME = re.compile(
    r"fetch|tokenizer|evaluations|encode|bands|pairs|similar|mix|assemble|validate|cache"
    r"|(build|last-build|revisions|spans|stages)\.json|\..+\.tmp"
)
_SET_FILES = (MANIFEST_FILE, RECIPE_FILE, TOKENIZER_FILE, RECIPE_FOLDER_FILE)


def check_places(out: WritableStore, work: WritableStore, recipe: Recipe, *, probing: bool) -> None:
    """Check what a build needs of its two places, before it writes there. Probing a bucket writes to it.

    Raises:
        InputError: a place holds other files, or one is in the other.
        StoreError: an object store cannot be used, or lacks what a build needs.
    """
    if _is_within(work, out):
        raise InputError(f"{work}: the work folder is inside the set's folder. Choose another --work.")
    if work.folder is None and needs_fetch(recipe):
        raise InputError(
            f"{work}: what is fetched from Software Heritage is kept in the work folder, which must be a folder of "
            "this machine then. Give one with --work; --out may be in the store."
        )
    # An object store must create a name once only, and list what was written.
    for store in (work, out):
        if store.folder is None and probing:
            require_abilities(store)
    _check_output(out, recipe)
    # Pruning, or the user, would delete what other programs keep in the work folder.
    if foreign := sorted(name for name in _names_in(work) if not _WORK_NAME.fullmatch(name)):
        listed = ", ".join(foreign[:5])
        raise InputError(
            f"{work}: holds files that are not a build's work: {listed}. Choose an empty folder for --work."
        )


def _check_output(out: WritableStore, recipe: Recipe) -> None:
    """Refuse an output folder that holds anything but an earlier version of this set."""
    if out.folder is not None and out.folder.is_file():
        raise InputError(f"{out}: is a file; expected a folder. Choose another --out.")
    names = _names_in(out)
    known = (name for name in names if name in _SET_FILES or SHARD_FILE.fullmatch(name) or TEMPORARY.fullmatch(name))
    if foreign := sorted(names - set(known)):
        listed = ", ".join(foreign[:5])
        raise InputError(f"{out}: holds files that no shard set has: {listed}. Choose an empty folder for --out.")
    # A set of another name may be what somebody trains on.
    if MANIFEST_FILE in names:
        try:
            name = json.loads(out.read(MANIFEST_FILE)).get("name")
        except (ValueError, AttributeError):
            name = None
        if name != recipe.name:
            raise InputError(
                f"{out}: holds the set {name!r}, not {recipe.name!r}; building here would replace it. "
                "Choose another --out, or delete the folder."
            )


def _is_within(work: WritableStore, out: WritableStore) -> bool:
    if work.folder is not None and out.folder is not None:
        return work.folder.resolve().is_relative_to(out.folder.resolve())
    return f"{work}/".startswith(f"{out}/")


def _names_in(place: WritableStore) -> set[str]:
    """Return the names of the files and folders in a place."""
    if place.folder is not None:
        return {path.name for path in place.folder.iterdir()} if place.folder.is_dir() else set()
    first_page = itertools.islice(place.list(), 1000)  # a work folder may hold a million
    return {file.name.partition("/")[0] for file in first_page}


@contextmanager
def hold_places(out: WritableStore, work: WritableStore) -> Generator[Callable[[], None]]:
    """Keep other builds away from both places; yield what raises when a place has been lost to another one."""
    with ExitStack() as stack:
        # A folder is locked by the kernel, which notices when the build ends; a store has a lease that ends by itself.
        leases: list[Lease] = []
        for store in (work, out):
            if store.folder is not None:
                store.folder.mkdir(parents=True, exist_ok=True)
                if not os.access(store.folder, os.W_OK):
                    raise InputError(f"{store}: no permission to write. Choose another folder, or change its mode.")
                stack.enter_context(lock_folder(store.folder))
            else:
                leases.append(stack.enter_context(closing(Lease(store))))

        def check() -> None:
            for lease in leases:
                lease.check()

        try:
            yield check
        finally:
            # A build that failed early leaves no empty folders.
            inner = work.folder.iterdir() if work.folder is not None else ()
            for folder in (*inner, work.folder, out.folder):
                with suppress(OSError):  # not empty, or a file
                    if folder is not None:
                        folder.rmdir()

"""The two places of a build, its set and its work folder: what they may hold, and how other builds are kept away."""

import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from pipeline.builder.publish import RECIPE_FILE, SHARD_FILE
from pipeline.recipe.schema import Recipe
from pipeline.tokenizer.train import TOKENIZER_FILE
from shards.errors import InputError, RunError, TokenmillError
from shards.format.manifest import COMPANION_FILES, MANIFEST_FILE
from shards.stores.files import is_abandoned, is_within, lock_folder, make_folder, unique_name
from shards.stores.object_store import require_abilities
from shards.stores.open import open_writable_store
from shards.stores.store import WritableStore

_WORK_FILE = re.compile(r"recipe-folder|(build|last-build|revisions|spans|stages)\.json")
_WORK_FOLDER = re.compile(r"fetch|tokenizer|evaluations|encode|bands|pairs|similar|mix|assemble|cache|rows|\..+\.tmp")
_SET_FILE = re.compile(
    "|".join([SHARD_FILE.pattern, *map(re.escape, (MANIFEST_FILE, RECIPE_FILE, TOKENIZER_FILE, *COMPANION_FILES))])
)
_HIDDEN = re.compile(r"\..*")


def check_places(out: WritableStore, work: WritableStore, recipe: Recipe, *, probing: bool) -> None:
    """Check what a build needs of its two places, before it writes there. Probing a bucket writes to it.

    Raises:
        InputError: a place holds other files, or one is in the other.
        StoreError: an object store cannot be used, or lacks what a build needs.
    """
    if _is_within(work, out) or _is_within(out, work):
        raise InputError(f"{work}: the work folder and the set's folder, {out}, overlap. Choose another --work.")
    if work.folder is None and recipe.needs_fetch:
        raise InputError(
            f"{work}: files from Software Heritage are kept in the work folder, so it must be a folder of "
            "this machine. Give one with --work; --out may be in the store."
        )
    # An object store must create a name once only, and list what was written.
    for store in (work, out):
        if store.folder is None and probing:
            require_abilities(store)
    _check_output(out, recipe)
    # Pruning, or the user, would delete what other programs keep in the work folder.
    _check_names(work, "work folder", "--work", _WORK_FILE, _WORK_FOLDER)


def _check_output(out: WritableStore, recipe: Recipe) -> None:
    """Refuse an output folder that holds anything but an earlier version of this set, and what may be beside one."""
    if out.folder is not None and out.folder.is_file():
        raise InputError(f"{out}: is a file; expected a folder. Choose another --out.")
    _check_names(out, "shard set", "--out", _SET_FILE, _HIDDEN)
    # A set of another name may be what somebody trains on.
    if out.find(MANIFEST_FILE) is not None:
        content = out.read(MANIFEST_FILE)
        try:
            name = json.loads(content)["name"]
        except (ValueError, LookupError, TypeError, RecursionError):
            name = None
        if name != recipe.name:
            held = f"the set {name!r}" if name else f"a {MANIFEST_FILE} of no set"
            raise InputError(
                f"{out}: holds {held}, not {recipe.name!r}; building here would replace it. "
                "Choose another --out, or delete the folder."
            )


def _check_names(place: WritableStore, what: str, option: str, files: re.Pattern[str], others: re.Pattern[str]) -> None:
    """Refuse foreign names in a place of a build, and what has the name of a file but is none: nothing is done yet."""
    are_files = _list_names(place)
    own = {name for name in are_files if files.fullmatch(name)}
    if foreign := sorted(name for name in are_files.keys() - own if not others.fullmatch(name)):
        raise InputError(
            f"{place}: holds files that no {what} has: {', '.join(foreign[:5])}. Choose an empty folder for {option}."
        )
    if odd := sorted(name for name in own if not are_files[name]):
        raise InputError(
            f"{place}/{odd[0]}: is not a regular file; expected one. Remove it, or choose another {option}."
        )


def _is_within(work: WritableStore, out: WritableStore) -> bool:
    if work.folder is not None and out.folder is not None:
        return is_within(work.folder, out.folder)
    return f"{work}/".startswith(f"{out}/")


def _list_names(place: WritableStore) -> dict[str, bool]:
    """Return the names of the files and folders in a place of a build, each with whether it is a file."""
    if place.folder is not None:
        return {entry.name: entry.is_file() for entry in os.scandir(place.folder)} if place.folder.is_dir() else {}
    first_page = itertools.islice(place.list(), 1000)  # a work folder may hold a million
    return {file.name.partition("/")[0]: True for file in first_page}


@contextmanager
def hold_places(out: WritableStore, work: WritableStore) -> Generator[Callable[[], None]]:
    """Keep other builds away from both places; yield what raises when a place has been lost to another one."""
    with ExitStack() as stack:
        # A folder is locked by the kernel, which notices when the build ends; a store has a lease that ends by itself.
        leases: list[Lease] = []
        for store in (work, out):
            if store.folder is not None:
                make_folder(store.folder)
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


RENEW_SECONDS = 15.0
STALE_SECONDS = 90.0
"""Six renewals. Retries of requests to a store that is down for a minute do not lose the lease."""
_NAME = re.compile(r"(\d{8})\.json")


class Lease:
    """A driver's right to write to a place, from its creation until `close`."""

    def __init__(self, place: WritableStore):
        """Take the lease of a place in an object store.

        Raises:
            InputError: another driver holds it.
        """
        self._place = str(place)
        self._store = open_writable_store(f"{place}.lease")
        self._owner = unique_name()
        self._lost = ""
        self._ended = threading.Event()
        self._number = self._take()
        self._renewed = time.monotonic()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")
        self._thread.start()

    def check(self) -> None:
        """Check that the lease was held when it was last renewed.

        Raises:
            RunError: it is lost.
        """
        if not self._lost and time.monotonic() - self._renewed > STALE_SECONDS:
            self._lost = f"it could not be renewed for {STALE_SECONDS:.0f} s"
        if self._lost:
            raise RunError(
                f"{self._place}: this build has lost the place to another one: {self._lost}. Finished work is kept; "
                "wait for the other build, or run the same command again when it has ended."
            )

    def close(self) -> None:
        """Give the lease back."""
        self._ended.set()
        self._thread.join()
        if not self._lost:
            with suppress(OSError, TokenmillError):
                self._store.delete(_name(self._number))

    def _take(self) -> int:
        for _ in range(10):  # each time another driver was faster
            # Take over the newest lease if it is stale, by creating the next number: one driver succeeds.
            held = self._read_all()
            number = max(held, default=0)
            if held:
                age = time.time() - float(held[number].get("time", 0))
                owner = str(held[number].get("owner", ""))
                if age < STALE_SECONDS and not is_abandoned(owner):
                    raise InputError(
                        f"{self._place}: another build is running here: {owner}, seen {max(0.0, age):.0f} s ago. Wait "
                        "for it to end, or choose another place. If it was killed, try again in "
                        f"{STALE_SECONDS - age:.0f} s."
                    )
            if self._store.create(_name(number + 1), self._content()):
                for earlier in held:
                    self._store.delete(_name(earlier))
                return number + 1
        raise InputError(f"{self._place}: other builds are starting here. Try again.")

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                held = self._read_all()
                newest = max(held, default=0)
                if newest != self._number or held[newest].get("owner") != self._owner:
                    self._lost = f"{held[newest]['owner']} has taken it over" if held else "its lease was deleted"
                    return
                self._store.put(_name(self._number), self._content())
                self._renewed = time.monotonic()
            except (OSError, TokenmillError):
                continue  # `check` counts the time

    def _read_all(self) -> dict[int, dict[str, Any]]:
        """Return the leases of the place by number. One that is deleted meanwhile, or is not JSON, is empty."""
        found: dict[int, dict[str, Any]] = {}
        for file in self._store.list():
            if match := _NAME.fullmatch(file.name):
                found[int(match[1])] = {}
                with suppress(FileNotFoundError, ValueError, RecursionError):
                    found[int(match[1])] = json.loads(self._store.read(file.name))
        return found

    def _content(self) -> bytes:
        return json.dumps({"owner": self._owner, "time": time.time()}).encode()


def _name(number: int) -> str:
    return f"{number:08d}.json"


def default_work(out: str) -> str:
    """Return the work folder that `build_set` uses if it is given none."""
    return f"{out}.work"

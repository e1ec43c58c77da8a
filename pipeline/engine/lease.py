"""Which driver is at work in a place of an object store: a lease, as a lock is for a folder.

A lease is a numbered object next to the place, `PLACE.lease/00000007.json`. It is created only if there is none of that
number, so of many drivers one gets it, and it is renewed by its holder alone. A lease that has not been renewed for
`STALE_SECONDS` is taken over: the next driver creates the next number. The holder looks for its own lease each time
that it renews, and stops if there is a higher one. A clock that is wrong by minutes may therefore cost one of two
builds, but no set.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from typing import Any

from shards.errors import InputError, RunError, TokenmillError
from shards.stores.files import is_abandoned, unique_name
from shards.stores.open import open_writable_store
from shards.stores.store import WritableStore

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
            with contextlib.suppress(OSError, TokenmillError):
                self._store.delete(_name(self._number))

    def _take(self) -> int:
        for _ in range(10):  # each time another driver was faster
            # Take over the newest lease if it is stale, by creating the next number: one driver succeeds.
            held = self._read_all()
            number = max(held, default=0)
            if held:
                self._check_stale(held[number])
            if self._store.create(_name(number + 1), self._content()):
                for earlier in held:
                    self._store.delete(_name(earlier))
                return number + 1
        raise InputError(f"{self._place}: other builds are starting here. Try again.")

    def _check_stale(self, holder: dict[str, Any]) -> None:
        """Raise InputError unless a lease may be taken over."""
        age = time.time() - float(holder.get("time", 0))
        owner = str(holder.get("owner", ""))
        if age < STALE_SECONDS and not is_abandoned(owner):
            raise InputError(
                f"{self._place}: another build is at work here: {owner}, seen {max(0.0, age):.0f} s ago. Wait for it "
                f"to end, or choose another place. If it was killed, try again in {STALE_SECONDS - age:.0f} s."
            )

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
        """Return the leases by number. A lease that is deleted meanwhile, or that is not JSON, is empty."""
        found: dict[int, dict[str, Any]] = {}
        for file in self._store.list():
            if match := _NAME.fullmatch(file.name):
                found[int(match[1])] = {}
                with contextlib.suppress(FileNotFoundError, ValueError):
                    found[int(match[1])] = json.loads(self._store.read(file.name))
        return found

    def _content(self) -> bytes:
        return json.dumps({"owner": self._owner, "time": time.time()}).encode()


def _name(number: int) -> str:
    return f"{number:08d}.json"

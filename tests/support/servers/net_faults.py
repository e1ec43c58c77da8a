"""Faults of the network, for the Hub and the bucket alike, switched on by a test while they run; deterministic.

Three kinds of rules. `every` makes each n-th matching request fail, in rotating ways: what a network does. `on`
changes the answers for certain paths: what a server does. `cut_uploads` breaks off bodies that clients send. Patterns
are regular expressions, searched in the unquoted path.
With several connections the count is exact, but which of two requests came first is the scheduler's choice.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.servers.http11 import Response

CUTS = ("reset-body", "short")
KINDS = ("reset", "429", "reset-body", "503", "short", "stall", "stall-body")
"""reset: closed with RST before any answer; reset-body: RST in the middle of the body; short: the end of the
connection in the middle of the body; stall: silence before the answer; stall-body: silence in the middle of it."""
WITHOUT_END = ("endless", "drip", "drip-head")
"""What comes only by name. endless: a body that goes on as fast as the client reads; drip: one of which a byte comes
after each stall; drip-head: headers that come so."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure about to happen."""

    kind: str
    stall_s: float = 1.0


@dataclass(slots=True)
class _Every:
    n: int
    kinds: tuple[str, ...]
    match: re.Pattern[str]
    most: int | None
    stall_s: float
    seen: int = 0
    done: int = 0


@dataclass(slots=True)
class _Path:
    match: re.Pattern[str]
    status: int | None
    body: bytes | None
    headers: dict[str, str]
    times: int | None


@dataclass(slots=True)
class _Upload:
    match: re.Pattern[str]
    times: int | None


class Faults:
    """The rules of one server; they apply from the next request on, and `off` removes them all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._every: list[_Every] = []
        self._paths: list[_Path] = []
        self._uploads: list[_Upload] = []

    def every(self, n: int, *kinds: str, match: str = "", most: int | None = None, stall_s: float = 1.0) -> None:
        """Make every n-th request whose path matches fail, in the given kinds by turns (all of `KINDS` if none given).

        Args:
            n: 1 means every request.
            kinds: names of `KINDS`.
            match: a regular expression, searched in the path.
            most: how many times at most; None: without end.
            stall_s: how long a stall lasts, in seconds; the answer is complete after it.
        """
        with self._lock:
            self._every.append(_Every(n, kinds or KINDS, re.compile(match), most, stall_s))

    def on(
        self,
        match: str,
        *,
        status: int | None = None,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        times: int | None = None,
    ) -> None:
        """Change the answers for the paths that match.

        A status answers with it, whatever the path holds. A body replaces that of successful answers (ranges are cut
        from the new one), headers replace single ones (`ETag`, `X-Linked-Size`: a file that changed): both with a
        Content-Length that agrees, so that only the content shows the fault.

        Args:
            match: a regular expression, searched in the path.
            times: how many answers at most; None: all.
        """
        with self._lock:
            self._paths.append(_Path(re.compile(match), status, body, headers or {}, times))

    def cut_uploads(self, match: str, *, times: int | None = 1) -> None:
        """Break off requests with a body, for the paths that match, when half of it has come: nothing is answered.

        Args:
            match: a regular expression, searched in the path.
            times: how many at most; None: all.
        """
        with self._lock:
            self._uploads.append(_Upload(re.compile(match), times))

    def off(self) -> None:
        """Remove every rule."""
        with self._lock:
            self._every.clear()
            self._paths.clear()
            self._uploads.clear()

    # --- Asked by the server ---

    def choose(self, path: str) -> Fault | None:
        """Count a request and return the failure due for it; every rule counts, the first one due wins."""
        if not self._every:
            return None
        due: Fault | None = None
        with self._lock:
            for rule in self._every:
                if rule.match.search(path) is None or (rule.most is not None and rule.done >= rule.most):
                    continue
                rule.seen += 1
                if rule.seen % rule.n == 0 and due is None:
                    due = Fault(rule.kinds[rule.done % len(rule.kinds)], rule.stall_s)
                    rule.done += 1
        return due

    def cuts_upload(self, path: str) -> bool:
        """Return whether to break off the body of this request, and count it."""
        if not self._uploads:
            return False
        with self._lock:
            for rule in self._uploads:
                if rule.times != 0 and rule.match.search(path):
                    rule.times = None if rule.times is None else rule.times - 1
                    return True
        return False

    def override(self, path: str, response: Response) -> Response:
        """Return the response, changed by the rules of its path."""
        if not self._paths:
            return response
        with self._lock:
            for rule in self._paths:
                if rule.times == 0 or rule.match.search(path) is None:
                    continue
                if rule.status is None and response.status != 200 and not rule.headers:
                    continue
                if rule.times is not None:
                    rule.times -= 1
                response = _changed(rule, response)
        return response


def _changed(rule: _Path, response: Response) -> Response:
    changes: dict[str, Any] = {"headers": response.headers | rule.headers}
    if rule.status is not None:
        changes |= {"status": rule.status, "body": rule.body or b""}
    elif response.status == 200 and rule.body is not None:
        changes["body"] = rule.body
    return dataclasses.replace(response, **changes)

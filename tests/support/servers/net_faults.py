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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
class _Rule:
    match: str
    most: int | None
    """How many times at most; None: without end."""
    n: int = 1
    kinds: tuple[str, ...] = ()
    stall_s: float = 0
    status: int | None = None
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    seen: int = 0
    done: int = 0

    def applies(self, path: str) -> bool:
        return self.done != self.most and re.search(self.match, path) is not None


class Faults:
    """The rules of one server; they apply from the next request on, and `off` removes them all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._every: list[_Rule] = []
        self._paths: list[_Rule] = []
        self._uploads: list[_Rule] = []

    def every(self, n: int, *kinds: str, match: str = "", most: int | None = None, stall_s: float = 1.0) -> None:
        """Make every n-th request whose path matches fail, in the given kinds by turns (all of `KINDS` if none given).

        A stall lasts `stall_s` seconds; the answer is complete after it.
        """
        with self._lock:
            self._every.append(_Rule(match, most, n, kinds or KINDS, stall_s))

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
        """
        with self._lock:
            self._paths.append(_Rule(match, times, status=status, body=body, headers=headers or {}))

    def cut_uploads(self, match: str, *, times: int | None = 1) -> None:
        """Break off requests with a body, for the paths that match, when half of it has come: nothing is answered."""
        with self._lock:
            self._uploads.append(_Rule(match, times))

    def off(self) -> None:
        """Remove every rule."""
        with self._lock:
            for rules in (self._every, self._paths, self._uploads):
                rules.clear()

    # --- Asked by the server ---

    def choose(self, path: str) -> Fault | None:
        """Count a request and return the failure due for it; every rule counts, the first one due wins."""
        due: Fault | None = None
        with self._lock:
            for rule in self._every:
                if rule.applies(path):
                    rule.seen += 1
                    if rule.seen % rule.n == 0 and due is None:
                        due = Fault(rule.kinds[rule.done % len(rule.kinds)], rule.stall_s)
                        rule.done += 1
        return due

    def cuts_upload(self, path: str) -> bool:
        """Return whether to break off the body of this request, and count it."""
        with self._lock:
            rule = next((rule for rule in self._uploads if rule.applies(path)), None)
            if rule:
                rule.done += 1
        return rule is not None

    def override(self, path: str, response: Response) -> Response:
        """Return the response, changed by the rules of its path."""
        with self._lock:
            for rule in self._paths:
                if not rule.applies(path) or not (rule.status or response.status == 200 or rule.headers):
                    continue
                rule.done += 1
                body = response.body
                if rule.status:
                    body = rule.body or b""
                elif response.status == 200 and rule.body is not None:
                    body = rule.body
                response = dataclasses.replace(
                    response, status=rule.status or response.status, body=body, headers=response.headers | rule.headers
                )
        return response

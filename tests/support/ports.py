"""Free TCP ports on loopback."""

from __future__ import annotations

import contextlib
import socket


def find_free_ports(count: int) -> list[int]:
    """Return TCP ports that nothing listens on now; all are different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]

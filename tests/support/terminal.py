"""A command run in a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from typing import Literal

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def run_in_terminal(
    command: list[str], *, columns: int, expect: int = 0, stderr: Literal["hidden", "shown"] = "hidden"
) -> str:
    """Run a command in a terminal; return what it shows there, without colours and without stderr unless `shown`."""
    shown, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        command,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal if stderr == "shown" else subprocess.DEVNULL,
        env={**environment, "TERM": "xterm"},
    ) as process:
        os.close(terminal)
        output = b""
        while True:
            try:
                output += os.read(shown, 1 << 16)
            except OSError:  # the command has ended
                break
    os.close(shown)
    assert process.returncode == expect, output.decode()
    return _ESCAPES.sub("", output.decode()).replace("\r\n", "\n")

"""A command in a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def run_in_terminal(command: list[str], *, columns: int) -> str:
    """Run a command in a terminal; return what it shows there, without colours."""
    shown, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm"}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        output = b""
        while True:
            try:
                output += os.read(shown, 1 << 16)
            except OSError:  # the command has ended
                break
        os.close(shown)
    text = _ESCAPES.sub("", output.decode()).replace("\r\n", "\n")
    assert process.returncode == 0, text
    return text

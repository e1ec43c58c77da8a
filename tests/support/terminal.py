"""Commands run in terminals of given widths."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from typing import Literal

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def run_in_terminal(
    command: list[str], *, columns: int, expect: int = 0, stderr: Literal["hidden", "shown"] = "hidden"
) -> str:
    """Run a command in a terminal; return what it shows there, without colours and without stderr unless `shown`."""
    shown, terminal = _open_terminal(columns)
    with subprocess.Popen(
        command,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal if stderr == "shown" else subprocess.DEVNULL,
        env=_environment(),
    ) as process:
        os.close(terminal)
        output = _read_to_end(shown)
    assert process.returncode == expect, output
    return output


_IN_TURN = """
import os, sys
from tokenmill.__main__ import main
terminals, *arguments = sys.argv[1:]
for terminal in map(int, terminals.split(",")):
    os.dup2(terminal, 0)
    os.dup2(terminal, 1)
    os.close(terminal)
    if main(arguments):
        sys.exit(1)
    sys.stdout.flush()
"""
"""Runs a command line once in each terminal that it inherits."""


def run_in_terminals(arguments: list[str], *, columns: Sequence[int]) -> list[str]:
    """Run a command line in a terminal of each width; return what each shows, as `run_in_terminal` does.

    One process runs it in all of them, because most of its time is spent in loading its modules.
    """
    masters, terminals = zip(*(_open_terminal(width) for width in columns), strict=True)
    command = [sys.executable, "-c", _IN_TURN, ",".join(map(str, terminals)), *arguments]
    with subprocess.Popen(
        command,
        stdin=terminals[0],
        stdout=terminals[0],
        stderr=subprocess.DEVNULL,
        env=_environment(),
        pass_fds=terminals,
    ) as process:
        for terminal in terminals:
            os.close(terminal)
        outputs = [_read_to_end(shown) for shown in masters]
    assert process.returncode == 0, outputs
    return outputs


def _open_terminal(columns: int) -> tuple[int, int]:
    """Return a terminal's other end, which shows what is written to it, and the terminal."""
    shown, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    return shown, terminal


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}


def _read_to_end(shown: int) -> str:
    """Return what is shown until no process has the terminal any more, without colours."""
    output = b""
    while True:
        try:
            output += os.read(shown, 1 << 16)
        except OSError:  # the command has ended
            break
    os.close(shown)
    return _ESCAPES.sub("", output.decode()).replace("\r\n", "\n")

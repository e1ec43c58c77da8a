"""`python -m shards`: check a shard set, look into it, print its schema.

Results go to stdout, progress and errors to stderr. Each command is a module of `shards.cli`; exit statuses and the
JSON of a failure are those of `shards.terminal.exit_status`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from shards.errors import RunError, ShardSetError
from shards.terminal.exit_status import run_command
from shards.terminal.program import build_parser, run_called

ABOUT = "Check, inspect, convert and share shard sets."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of `python -m shards`; return its exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)

    def run() -> int:
        try:
            return run_called(build_parser("shards", ABOUT, given), given)
        except ShardSetError as error:  # the set cannot be used: a failure, not a wrong command line
            raise RunError(error.problems) from error

    return run_command(run, as_json="--json" in given)


def run_process(arguments: Sequence[str]) -> NoReturn:
    """Run the command line of `python -m shards`, and end this process."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it, too, leaves no worker behind
    sys.exit(main(arguments))


if __name__ == "__main__":
    run_process(sys.argv[1:])

"""`python -m shards`: check a shard set, look into it, print its schema.

Results go to stdout, progress and errors to stderr. Each command is a module of `shards.cli`; exit statuses and the
JSON of a failure are those of `shards.terminal.exit_status`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from shards.cli import audit, export_set, import_set, inspect_set, pull, push, report, schema, trace, validate
from shards.terminal.arguments import add_version
from shards.terminal.command_names import called_as
from shards.terminal.exit_status import run_command

COMMANDS = (
    validate,
    inspect_set,
    schema,
    audit,
    trace,
    report,
    export_set,
    import_set,
    push,
    pull,
)
"""In the order of `--help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command of `python -m shards`; return its exit status."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: options.run(options), as_json=getattr(options, "json", False), program="shards")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=called_as("shards"), description="Check, inspect, convert and share shard sets."
    )
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_command(commands)
    return parser


def run_process(arguments: Sequence[str]) -> NoReturn:
    """Run the command line of `python -m shards`, and end this process."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it, too, leaves no worker behind
    sys.exit(main(arguments))


if __name__ == "__main__":
    run_process(sys.argv[1:])

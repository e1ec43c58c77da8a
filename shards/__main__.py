"""`python -m shards`: check a shard set, look into it, print its schema.

Results go to stdout, progress and errors to stderr. Each command is a module of `shards.cli`; exit statuses and the
JSON of a failure are those of `shards.terminal.exit_status`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from shards.cli import audit, export_set, import_set, inspect_set, pull, push, report, schema, trace, validate
from shards.errors import RunError, ShardSetError
from shards.terminal.arguments import add_version
from shards.terminal.command_names import called_as
from shards.terminal.exit_status import run_command
from shards.terminal.parser import Parser

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
    given = sys.argv[1:] if arguments is None else list(arguments)

    def run() -> int:
        options = _parser().parse_args(given)
        try:
            return options.run(options)
        except ShardSetError as error:  # the set cannot be used: a failure, not a wrong command line
            raise RunError(error.problems) from error

    return run_command(run, as_json="--json" in given)


def _parser() -> Parser:
    parser = Parser(prog=called_as("shards"), description="Check, inspect, convert and share shard sets.")
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

"""`python -m shards`: check a shard set, look into it, print its schema.

Results go to stdout, progress and errors to stderr; with `--json` why it could not run is on stdout too, as
`{"error": ...}`. Exit status 0: whole; 1: problems found; 2: could not run; 130: interrupted; 141: nobody read the
output to its end (`| head`), as of any program that a pipe stops. Each command is a module of `shards.commands`.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence

from shards.command_line import COULD_NOT_RUN, INTERRUPTED, CouldNotRunError, drop_output, print_json
from shards.commands import audit, export_set, import_set, inspect_set, pull, push, report, schema, trace, validate

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
    """Run a command; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        return drop_output()
    except (OSError, CouldNotRunError) as error:
        return _fail(error, options)
    except KeyboardInterrupt:
        return _fail("interrupted", options, INTERRUPTED)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shards", description="Check a shard set, or look into it.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_command(commands)
    return parser


def _fail(error: object, options: argparse.Namespace, status: int = COULD_NOT_RUN) -> int:
    from shards.display import printable

    if getattr(options, "json", False):
        with contextlib.suppress(OSError):  # stdout may be what failed
            print_json({"error": str(error)})
    print(f"shards: {printable(str(error))}", file=sys.stderr)
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it, too, leaves no worker behind
    sys.exit(main())

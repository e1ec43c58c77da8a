"""`python -m shards`: check a shard set, look into it, print its schema.

Results go to stdout (`--json` for programs), progress and errors to stderr. Exit status 0: whole; 1: problems found;
2: could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shards.reader import Shard, ShardSet

WHOLE, PROBLEMS, COULD_NOT_RUN = 0, 1, 2


class _CouldNotRunError(Exception):
    """What was asked for cannot be done; the message says why and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): nothing is left to say, nor anyone to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COULD_NOT_RUN
    except (OSError, _CouldNotRunError) as error:
        return _fail(error)
    except KeyboardInterrupt:
        return _fail("interrupted")
    return status


def _validate(options: argparse.Namespace) -> int:
    from shards.display import print_report, show_progress
    from shards.validate import validate

    _require_folder(options.set)
    with show_progress() if options.level == "full" else nullcontext() as progress:
        report = validate(
            options.set,
            level=options.level,
            against_sources=options.against_sources,
            threads=options.threads,
            progress=progress,
        )
    if options.json:
        _print_json(report.to_dict())
    else:
        print_report(report)
    if report.problems:
        return PROBLEMS
    return COULD_NOT_RUN if report.not_run else WHOLE


def _inspect(options: argparse.Namespace) -> int:
    from shards.display import describe_set, print_document, print_problems, print_set
    from shards.problems import ShardSetError
    from shards.reader import open_set

    if (options.shard is None) != (options.document is None):
        raise _CouldNotRunError("inspect: --shard and --document go together. Give both, or neither.")
    _require_folder(options.set)
    try:
        shard_set = open_set(options.set)
        if options.shard is None:
            if options.json:
                _print_json(describe_set(shard_set))
            else:
                print_set(shard_set)
            return WHOLE
        document = _find_document(shard_set, _find_shard(shard_set, options.shard), options.document)
    except ShardSetError as error:
        if options.json:
            _print_json({"problems": [problem.to_dict() for problem in error.problems]})
        else:
            print_problems(error.problems)
        return PROBLEMS
    if options.json:
        _print_json(document)
    else:
        print_document(document)
    return WHOLE


def _schema(_options: argparse.Namespace) -> int:
    from shards.manifest import json_schema

    _print_json(json_schema())
    return WHOLE


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        raise _CouldNotRunError(f"{path}: no such folder. Give the folder that holds manifest.json.")


def _find_shard(shard_set: ShardSet, name: str) -> Shard:
    """Find a shard by name, or by its place in the manifest."""
    if name.isascii() and name.isdigit():
        index = int(name)
        if index < len(shard_set.shards):
            return shard_set.shards[index]
        raise _CouldNotRunError(f"inspect: no shard {index}; the set has {len(shard_set.shards)}, counted from 0.")
    try:
        return shard_set.shard(name)
    except KeyError as error:
        raise _CouldNotRunError(f"inspect: {error.args[0]}") from error


def _find_document(shard_set: ShardSet, shard: Shard, number: int) -> dict[str, Any]:
    """Return a document's text and provenance."""
    from shards.documents import read_document

    if not 0 <= number < shard.num_documents:
        raise _CouldNotRunError(
            f"inspect: no document {number} in {shard.name}; it has {shard.num_documents}, counted from 0."
        )
    try:
        return read_document(shard_set, shard, number)
    except ValueError as error:
        from shards.problems import ShardSetError

        if isinstance(error, ShardSetError):
            raise
        raise _CouldNotRunError(f"inspect: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shards", description="Check a shard set, or look into it.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    validate = commands.add_parser(
        "validate", help="check a set; exit 0 whole, 1 problems, 2 could not run", description="Check a shard set."
    )
    validate.add_argument("set", type=Path, metavar="DIR", help="the set's folder")
    validate.add_argument(
        "--level", choices=("quick", "full"), default="full", help="quick: everything but the tokens (default: full)"
    )
    validate.add_argument(
        "--against-sources", type=_whole_number, default=0, metavar="N", help="re-read N sampled documents from source"
    )
    validate.add_argument(
        "--threads", type=_positive_number, default=len(os.sched_getaffinity(0)), metavar="N", help="default: the cores"
    )
    validate.add_argument("--json", action="store_true", help="print the report as JSON")
    validate.set_defaults(run=_validate)

    inspect = commands.add_parser("inspect", help="print a set's tables, or one document", description=_inspect.__doc__)
    inspect.add_argument("set", type=Path, metavar="DIR", help="the set's folder")
    inspect.add_argument("--shard", metavar="K", help="a shard's name, or its place in the manifest, from 0")
    inspect.add_argument("--document", type=_whole_number, metavar="J", help="a document of that shard, from 0")
    inspect.add_argument("--json", action="store_true", help="print JSON; text is exact there, escaped otherwise")
    inspect.set_defaults(run=_inspect)

    schema = commands.add_parser("schema", help="print the JSON Schema of manifest.json and of a shard's own metadata")
    schema.set_defaults(run=_schema)
    return parser


def _whole_number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative; expected a whole number from 0")
    return number


def _positive_number(text: str) -> int:
    number = _whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; expected a whole number from 1")
    return number


def _print_json(value: dict[str, Any]) -> None:
    # ASCII only: a text's control characters and lone surrogates stay exact and harmless.
    print(json.dumps(value, indent=2))


def _fail(error: object) -> int:
    from shards.display import printable

    print(f"shards: {printable(str(error))}", file=sys.stderr)
    return COULD_NOT_RUN


if __name__ == "__main__":
    sys.exit(main())

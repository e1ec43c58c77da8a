"""What the commands share: exit statuses, types of flags, JSON on stdout. Light: imported before anything is known."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # pyright: ignore[reportPrivateUsage]
    """What `ArgumentParser.add_subparsers` returns, for which argparse has no public name."""

WHOLE, PROBLEMS, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED, PIPE_CLOSED = 128 + signal.SIGINT, 128 + signal.SIGPIPE
"""What a shell reports of a program that the signal ended, for whoever waits for ours."""


class CouldNotRunError(Exception):
    """What was asked for cannot be done; the message says why and what to do. Exit status 2."""


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add the set's folder, which nearly every command takes, as `options.set`."""
    parser.add_argument("set", type=Path, metavar="DIR", help="the set's folder")


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add `--threads`, whose default is every core this process may use."""
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=positive_number, default=cores, metavar="N", help="default: the cores")


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add `--workers`, whose default is every core this process may use."""
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", type=positive_number, default=cores, metavar="N", help="processes (default: one a core)"
    )


def require_folder(path: Path) -> None:
    """Check that the set's folder is there.

    Raises:
        CouldNotRunError: it is not.
    """
    if not path.is_dir():
        raise CouldNotRunError(f"{path}: no such folder. Give the folder that holds manifest.json.")


def whole_number(text: str) -> int:
    """Parse a flag's value as a whole number from 0."""
    return _number_from(0, text)


def positive_number(text: str) -> int:
    """Parse a flag's value as a whole number from 1."""
    return _number_from(1, text)


def _number_from(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = None
    if number is None or number < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least}, got {text!r:.40}")
    return number


def print_json(value: dict[str, Any]) -> None:
    """Print a result as JSON. ASCII only: a text's control characters and lone surrogates stay exact and harmless."""
    print(json.dumps(value, indent=2))

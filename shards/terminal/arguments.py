"""Flags and arguments that several commands share, and the types of their values. Imports nothing heavy."""

import argparse
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from shards.errors import InputError


def number_in(least: float, most: float, kind: type[float] = float) -> Callable[[str], float]:
    """Return the type of a flag whose value is a number from `least` to `most`."""
    name = "a whole number" if kind is int else "a number"
    bounds = f"from {least}" if most == math.inf else f"from {least} to {most}"

    def parse(text: str) -> float:
        with contextlib.suppress(ValueError):
            if least <= (number := kind(text)) <= most:
                return number
        raise argparse.ArgumentTypeError(f"expected {name} {bounds}, got {text!r:.40}")

    return parse


whole_number = number_in(0, math.inf, int)
positive_number = number_in(1, math.inf, int)
seconds = number_in(0.001, 10**6)


def parse_path(text: str) -> Path:
    """Parse a flag's value that is a path; empty text would be the working directory.

    Raises:
        ArgumentTypeError: the text is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("the path is empty. Is a variable of the shell not set?")
    return Path(text)


def parse_place(text: str) -> Path | str:
    """Parse a flag's place of a set: an address (`s3://...`) as it is, anything else as a path.

    Raises:
        ArgumentTypeError: the text is empty.
    """
    return text if "://" in text else parse_path(text)


def parse_size(flag: str, text: str, *, least: int = 1) -> int:
    """Parse a flag's size such as `80GB` (powers of ten) or `80GiB`.

    Raises:
        InputError: it is not a size, or less than `least` bytes.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    # A size has a number and a unit, and nothing else.
    whole = re.fullmatch(r"\s*[\d.]+\s*[a-zA-Z]+\s*", text)  # pydantic ignores text after a size
    with contextlib.suppress(ValidationError):
        if whole and (size := TypeAdapter(ByteSize).validate_python(text)) >= least:
            return size
    raise InputError(f"{flag} {text}: expected a size such as 80GB or 79.1GiB")


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add the shared argument SET, the place of the set, as `options.set`: a `Path`, or an address as text."""
    about = "the set: a folder, or an address such as s3://BUCKET/PREFIX or hf://datasets/OWNER/NAME"
    parser.add_argument("set", type=parse_place, metavar="SET", help=about)


def add_run(parser: argparse.ArgumentParser, *, checkpoint: bool = False) -> None:
    """Add the shared argument RUN, a training run's folder, as `options.run`; with `checkpoint` also `--checkpoint`."""
    about = "the folder of a training run" + ", or a model of transformers (Llama or Qwen3)" * checkpoint
    parser.add_argument("run", type=parse_path, metavar="RUN", help=about)
    if checkpoint:
        parser.add_argument(
            "--checkpoint", type=parse_path, metavar="DIR", help="folder of a checkpoint (default: the newest of RUN)"
        )


def add_new_folder(parser: argparse.ArgumentParser) -> None:
    """Add the shared flag `--out`, a folder that a command makes."""
    about = "a new folder, which appears once everything is written"
    parser.add_argument("--out", type=parse_path, required=True, metavar="DIR", help=about)


def add_found(parser: argparse.ArgumentParser) -> None:
    """Add the shared flags `--limit` and `--out` of a search for documents."""
    about = "documents to show; 0 for all (default: %(default)s)"
    parser.add_argument(
        "--limit", type=lambda text: whole_number(text) or sys.maxsize, default=20, metavar="N", help=about
    )
    about = "write the documents' hashes as a block list, for a data recipe's drop_hashes"
    parser.add_argument("--out", type=parse_path, metavar="FILE", help=about)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the shared flag `--threads`, whose default is every core this process may use."""
    _add_number(parser, "--threads", "threads")


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the shared flag `--workers`, whose default is every core this process may use."""
    _add_number(parser, "--workers", "worker processes")


def _add_number(parser: argparse.ArgumentParser, flag: str, about: str) -> None:
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(flag, type=positive_number, default=cores, metavar="N", help=f"{about} (default: one per core)")


def add_recipe(parser: argparse.ArgumentParser, about: str, example: str, *, nargs: str | None = None) -> None:
    """Add the shared arguments RECIPE and `--set`, as `options.recipe` and `options.overrides`."""
    parser.add_argument("recipe", type=parse_path, nargs=nargs, metavar="RECIPE", help=about)
    add_overrides(parser, example)


def add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    """Add the shared flag `--set`, as `options.overrides`."""
    change = f"override a key of the recipe, with a value in TOML syntax: {example}"
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help=change)


def add_give_up_after(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the shared flag `--give-up-after`, seconds, as `options.give_up_after`; None if it is not given."""
    parser.add_argument(
        "--give-up-after",
        type=seconds,
        metavar="S",
        help="seconds for which a failed request is retried (default: 600)",
    )

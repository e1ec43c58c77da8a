"""The frame of a command: read a command line, run the command, print what it found, return the exit status.

A command is a module named in `tokenmill.__main__`. Its docstring is what `--help` explains; it has
`add_arguments(parser)`, and `run(options)`, which returns an `Outcome`, or an exit status if it has printed what it
found. Only the module of the command that was called is imported, and it imports what is heavy inside `run`, so that
`--help` is quick.

Exit statuses: 0 done; 1 it failed on the way, or the set has problems; 2 it could not run (a recipe, data, a flag, the
machine); 130 interrupted; 141 the reader of the output has gone (`| head`).
"""

import argparse
import contextlib
import errno
import importlib
import inspect
import itertools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO, cast

from shards.errors import InputError, TokenmillError, any_remedy, lacks_memory, missing_extra, text_of
from shards.terminal.display import JsonObject, Table, format_json, print_lines, print_rows, say
from shards.terminal.hints import did_you_mean
from shards.terminal.reporter import report_to

WHOLE, PROBLEMS, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED, PIPE_CLOSED = 128 + signal.SIGINT, 128 + signal.SIGPIPE
"""The statuses that a shell reports when these signals end a program."""

Part = str | Table
"""What a command prints for people: a line, or a table."""
Shown = Iterable[Part]


@dataclass(frozen=True)
class Outcome:
    """What a command found.

    Attributes:
        data: the JSON object that `--json` prints.
        shown: what is printed without `--json`. A generator makes it only then.
        status: the exit status.
    """

    data: JsonObject
    shown: Shown
    status: int = WHOLE


RARE = re.compile(
    "--(cache|cache-limit|card|connections|content-endpoint|dtype|engine|give-up-after|gpu-memory|limit|offset|prune|"
    "ray-address|repetition-penalty|rows|scratch|threads|timeout|token|top-k|top-p|validate)"
)
"""The flags that few people need: `--help-all` explains them, `--help` does not."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `InputError`, for `run_command` to tell."""

    def hide_rare(self) -> None:
        """Leave the rare flags out of the help text of a command, and say how to see them."""
        hidden = [action for action in self._actions if any(map(RARE.fullmatch, action.option_strings))]
        for action in hidden:
            action.help = argparse.SUPPRESS
        if hidden:
            self.add_argument("--help-all", action="store_true", help="also explain the advanced flags")

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]  the overloads of typeshed
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse a command line; refuse unknown flags, which argparse tells only if nothing else is wrong, with the
        rest."""
        given: list[str] = list(itertools.takewhile(lambda word: word != "--", args))
        words = [word for word in given if re.fullmatch("--[a-z][^ ]*", word)]
        if unknown := [word for word in words if word.partition("=")[0] not in self._option_string_actions]:
            hints = (did_you_mean(word.partition("=")[0], [*self._option_string_actions]) for word in unknown)
            told = f"unrecognized arguments: {' '.join(unknown)}.{''.join(hints)}"
            try:
                super().parse_known_args(args, namespace)
            except InputError as error:
                told += f" Also {error}".partition(". `")[0]
            self.error(told)
        for word in words:
            if re.fullmatch("[^=]*=--", word):  # argparse would make an empty list of it, whatever the flag's type
                self.error(f"argument {word[:-3]}: expected one argument")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Refuse a command line.

        Raises:
            InputError: always, with argparse's message, and the nearest word of a choice.
        """
        if choices := re.fullmatch(r".*invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL):
            hint = did_you_mean(choices[1], re.findall(r"[\w-]+", choices[2]))
            message += hint and f".{hint}"
        end = "" if message.endswith(("?", ".")) else "."
        raise InputError(f"{message}{end} `{self.prog} --help` explains the arguments.")


def command_parser(name: str, module: Any) -> Parser:
    """Return the parser of a command."""
    about = inspect.cleandoc(module.__doc__ or "")
    # Without abbreviations: a flag by which code runs is given whole.
    kind = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"tokenmill {name}", description=about, formatter_class=kind, allow_abbrev=False)
    module.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def call_command(name: str, module_name: str, arguments: Sequence[str], answered: Callable[[int], None]) -> int:
    """Run a command, print its outcome, and return the exit status; `answered` gets the status of an outcome before it
    is printed, and may raise."""
    parser = command_parser(name, module := importlib.import_module(module_name))
    if "--help-all" in arguments:
        parser.print_help()
        return WHOLE
    parser.hide_rare()
    options = parser.parse_args(arguments)
    # The address of a remote set is checked when it is opened.
    place = getattr(options, "set", None)
    if isinstance(place, Path) and not place.is_dir():
        what = "is no folder" if os.path.lexists(place) else "no such folder"
        inside = "checkpoints" if getattr(options, "model", False) else "manifest.json"
        raise InputError(f"{place}: {what}. Give the folder that contains {inside}.")
    outcome = module.run(options)
    if isinstance(outcome, int):  # the command has printed what it found, as it found it
        return outcome
    answered(outcome.status)
    if options.json:
        print(format_json(outcome.data))
        return outcome.status
    # A generator makes one part after another, so that the first lines come at once.
    for part in outcome.shown:
        if isinstance(part, str):
            print_lines([part])
        else:
            print_rows(part)
    return outcome.status


class _Stdout:
    """The process's stdout while a command runs; it keeps why it has failed: its reader has gone, its disk is full.

    So an error of another pipe or file is not taken for one of stdout's.
    """

    failed: OSError | None = None

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._try(self._stream.write, text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, use: Callable[..., Any], *arguments: str) -> Any:
        if self.failed is not None:
            raise self.failed  # argparse goes on after it
        try:
            return use(*arguments)
        except OSError as error:
            self.failed = error
            raise


def run_command(run: Callable[[], int], *, as_json: bool, os_error_status: int = COULD_NOT_RUN) -> int:
    """Run a command and return its exit status.

    Stores tell on stderr what they wait for.

    Print a failure on stderr and, with `as_json`, on stdout too, as `{"status": "refused" | "failed" | "interrupted",
    "problems": [...]}`. Any error but `TokenmillError`, `OSError` and lack of memory is a bug and is raised. Of the
    ranks that torchrun starts, all are refused for the same reason: the first of each machine prints it, and the first
    of all as JSON. A rank that fails prints its own message.

    Args:
        run: the command; returns its exit status.
        as_json: whether `--json` was given.
        os_error_status: the exit status of an `OSError` other than a full disk, which is 1.
    """
    stdout, before = _Stdout(sys.stdout), report_to(say)
    try:
        with contextlib.redirect_stdout(cast("TextIO", stdout)):
            return _run_and_tell(run, stdout, as_json=as_json, os_error_status=os_error_status)
    finally:
        report_to(before)
        if stdout.failed is not None:  # what its buffer holds goes nowhere when the process ends
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run_and_tell(run: Callable[[], int], stdout: _Stdout, *, as_json: bool, os_error_status: int) -> int:
    """Run a command, print its failure, and return the exit status; see `run_command`."""
    try:
        try:
            status = run()
        except SystemExit as ended:  # argparse has printed a help text
            status = int(ended.code or WHOLE)
        except ModuleNotFoundError as error:
            raise missing_extra(error) from error
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        problems, status = ["interrupted; run the same command to resume"], INTERRUPTED
    except TokenmillError as error:
        problems, status = list(error.problems), error.exit_status
    except BaseException as error:  # a panic of a Rust library is no Exception
        if not isinstance(error, OSError) and not lacks_memory(error):
            raise
        if stdout.failed and isinstance(error, BrokenPipeError):
            return PIPE_CLOSED
        # A full disk is no wrong command line: it fails on the way.
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        problems = [f"{'stdout: ' if stdout.failed else ''}{text_of(error)}{any_remedy(error)}"]
        status = PROBLEMS if full else os_error_status
    # A program that reads JSON gets it for a failure, too.
    rank = os.environ.get("RANK", "0")
    if as_json and rank == "0" and not stdout.failed:
        outcome = {INTERRUPTED: "interrupted", COULD_NOT_RUN: "refused"}.get(status, "failed")
        entries = [problem if isinstance(problem, str) else problem.to_dict() for problem in problems]
        try:
            print(format_json({"status": outcome, "problems": entries}), flush=True)
        except BrokenPipeError:
            status = PIPE_CLOSED
        except OSError:
            pass  # the problems are on stderr, too
    if status == PROBLEMS or os.environ.get("LOCAL_RANK", rank) == "0":
        say("\n".join(f"error: {problem}" for problem in problems))
    return status

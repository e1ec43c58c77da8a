"""Running a command: what it raises becomes an exit status, lines for a person, and JSON where that was asked for.

Exit statuses, the same for all three packages: 0 done; 1 it failed on the way, or the set has problems; 2 it could not
run (a recipe, data, a flag, the machine); 130 interrupted; 141 nobody read the output to its end (`| head`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable

from shards.errors import TokenmillError
from shards.terminal.arguments import print_json
from shards.terminal.display import say

WHOLE, PROBLEMS, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED, PIPE_CLOSED = 128 + signal.SIGINT, 128 + signal.SIGPIPE
"""What a shell reports of a program that the signal ended."""

DISK_FULL = "The disk is full. Free some space and run the same command again."


def run_command(
    run: Callable[[], int],
    *,
    as_json: bool,
    program: str = "",
    interrupted: str = "interrupted",
    os_error_status: int = COULD_NOT_RUN,
    tell_refusals: bool = True,
) -> int:
    """Run a command and return its exit status.

    A failure is told on stderr; with `as_json` also on stdout, as `{"status": "refused" | "failed" | "interrupted",
    "problems": [...]}`. An error that is not a `TokenmillError` or an `OSError` is a fault of ours and is raised.

    Args:
        run: the command; returns its exit status.
        as_json: whether the person asked for JSON.
        program: what lines on stderr begin with; `error` when empty.
        interrupted: what is said after Ctrl-C.
        os_error_status: the exit status of an `OSError` other than a full disk, which is 1.
        tell_refusals: whether stderr tells of what has another status than 1: of many ranks that are refused for the
            same reason one speaks, of one that fails each speaks for itself.
    """
    try:
        status = run()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return drop_output()
    except KeyboardInterrupt:
        outcome, problems, status = "interrupted", [interrupted], INTERRUPTED
    except TokenmillError as error:
        problems, status = list(error.problems), error.exit_status
        outcome = "refused" if status == COULD_NOT_RUN else "failed"
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        problems = [f"{error}. {DISK_FULL}" if full else str(error)]
        status = PROBLEMS if full else os_error_status
        outcome = "refused" if status == COULD_NOT_RUN else "failed"
    if as_json:
        entries = [problem if isinstance(problem, str) else problem.to_dict() for problem in problems]
        try:
            print_json({"status": outcome, "problems": entries})
            sys.stdout.flush()
        except BrokenPipeError:
            status = drop_output()
        except OSError:
            pass  # stdout may be what failed
    if status == PROBLEMS or tell_refusals:
        say("\n".join(f"{program or 'error'}: {problem}" for problem in problems))
    return status


def drop_output() -> int:
    """Send what is still to be printed nowhere, for nobody reads on (`| head`); return the exit status that says so."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED

"""Run a command: turn what it raises into an exit status, a message on stderr, and JSON with `--json`.

Exit statuses: 0 done; 1 it failed on the way, or the set has problems; 2 it could not run (a recipe, data, a flag, the
machine); 130 interrupted; 141 the reader of the output has gone (`| head`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable

from shards.errors import TokenmillError, missing_extra, path_remedy, remedy_of
from shards.terminal.display import print_json, say
from shards.terminal.waiting import report_to

WHOLE, PROBLEMS, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED, PIPE_CLOSED = 128 + signal.SIGINT, 128 + signal.SIGPIPE
"""The statuses that a shell reports when these signals end a program."""

_INTERRUPTED = "interrupted; what was finished is kept. Run the same command again."


def run_command(
    run: Callable[[], int],
    *,
    as_json: bool,
    os_error_status: int = COULD_NOT_RUN,
) -> int:
    """Run a command and return its exit status.

    Stores tell on stderr what they wait for.

    Print a failure on stderr and, with `as_json`, on stdout too, as `{"status": "refused" | "failed" | "interrupted",
    "problems": [...]}`. Any error but `TokenmillError` and `OSError` is a bug and is raised. Of the ranks that torchrun
    starts, all are refused for the same reason: the first of each machine prints it, and the first of all as JSON. A
    rank that fails prints its own message.

    Args:
        run: the command; returns its exit status.
        as_json: whether `--json` was given.
        os_error_status: the exit status of an `OSError` other than a full disk, which is 1.
    """
    before = report_to(say)
    try:
        status = run()
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return discard_output()
    except KeyboardInterrupt:
        outcome, problems, status = "interrupted", [_INTERRUPTED], INTERRUPTED
    except TokenmillError as error:
        problems, status = list(error.problems), error.exit_status
        outcome = "refused" if status == COULD_NOT_RUN else "failed"
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if not isinstance(missing, TokenmillError):
            raise
        problems, status, outcome = list(missing.problems), missing.exit_status, "refused"
    except OSError as error:
        # A full disk is no wrong command line: it fails on the way.
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        problems = [f"{error}{remedy_of(error) or path_remedy(error)}"]
        status = PROBLEMS if full else os_error_status
        outcome = "refused" if status == COULD_NOT_RUN else "failed"
    finally:
        report_to(before)
    # A program that reads JSON gets it for a failure, too.
    rank = os.environ.get("RANK", "0")
    if as_json and rank == "0":
        entries = [problem if isinstance(problem, str) else problem.to_dict() for problem in problems]
        try:
            print_json({"status": outcome, "problems": entries})
            sys.stdout.flush()
        except BrokenPipeError:
            status = discard_output()
        except OSError:
            pass  # stdout may be what failed
    if status == PROBLEMS or os.environ.get("LOCAL_RANK", rank) == "0":
        say("\n".join(f"error: {problem}" for problem in problems))
    return status


def discard_output() -> int:
    """Discard a command's further output, since its reader has gone (`| head`), and return the exit status for that."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED

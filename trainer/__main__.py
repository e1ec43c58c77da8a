"""The command: `python -m trainer COMMAND`; `--help` lists them.

Exit statuses: 0 done; 1 the run failed; 2 it could not run (bad input, nothing started); 3 training stopped at an
off-ramp: a phase's goal was missed or its budget is spent; 130 or 143 after SIGINT or SIGTERM interrupted training. In
the last two cases a checkpoint was saved, unless a second SIGINT stopped it at once. 141: nobody read the output to its
end (`| head`). Results go to stdout, everything else to stderr; with `--json` refusals and failures are JSON too.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from shards.terminal.exit_status import PROBLEMS, run_command
from shards.terminal.program import build_parser, run_called
from trainer.commands.train import is_first_rank

ABOUT = "From a shard set to a model."


def main(arguments: list[str] | None = None) -> int:
    """Run a command of `python -m trainer` and return its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(
        lambda: run_called(build_parser("trainer", ABOUT, given), given),
        as_json="--json" in given and is_first_rank(),
        interrupted="interrupted; what was saved before is whole",
        os_error_status=PROBLEMS,
        tell_refusals=os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0",
    )


def run_process(arguments: list[str]) -> NoReturn:
    """Run the command line of `python -m trainer`, and end this process."""
    sys.exit(main(arguments))


if __name__ == "__main__":
    run_process(sys.argv[1:])

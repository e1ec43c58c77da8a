"""The command line of the pipeline: `python -m pipeline build | plan | clean-report | demo-corpus`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import Any, NoReturn

from shards.terminal.exit_status import run_command
from shards.terminal.program import build_parser, run_called

_GC_THRESHOLD = 50_000
"""New objects before the garbage collector runs. With Python's 700, it goes through all modules again and again while
they are loaded: 0.05 to 0.1 s of a build's start."""

ABOUT = "Build a shard set from a recipe: exact token mix, the same bytes however it is run."

EPILOG = """\
examples:
  %(prog)s plan  recipes/data/demo.toml
  %(prog)s build recipes/data/demo.toml --out out/demo
  %(prog)s build recipes/data/demo.toml --out out/demo --tokens 2M --workers 4
exit status: 0 done, 1 failed on the way or the set has problems, 2 could not run (recipe, data, machine),
            130 interrupted, 141 nobody read the output to its end (| head)
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command of `python -m pipeline`; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_command(
        lambda: run_called(build_parser("pipeline", ABOUT, given, EPILOG), given),
        as_json="--json" in given,
        interrupted="interrupted; finished work is kept. Run the same command again to resume.",
    )


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def run_process(arguments: list[str]) -> NoReturn:
    """Run `python -m pipeline` in this process, and end the process."""
    signal.signal(signal.SIGTERM, _interrupt)
    gc.set_threshold(_GC_THRESHOLD)
    # OpenBLAS starts a thread for each core when numpy is loaded, and they spin: 0.1 s of processor time on two cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    exit_code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    if exit_code:
        gc.collect()  # with an error's traceback goes what it held: os._exit would leave its semaphores behind
    os._exit(exit_code)  # all is written; sys.exit would wait 0.2 s for the fork server to unload its libraries


if __name__ == "__main__":
    run_process(sys.argv[1:])

"""What `shards push` costs for a set of many small shards: seconds of the push, and of the Hub on loopback, apart.

    python -m tests.benchmarks.push [--shards NUMBER ...] [--work DIR]

The Hub is a process of its own. All seconds are of the processor, and both sides must grow with the shards: `growth` is
what a shard costs in the largest set, divided by what one costs in the smallest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.servers.hub_writes import OWNER, WRITER
from tests.support.token_sets import count_up, write_token_set

SHARDS = (2500, 10_000)
SHARD_TOKENS = 150

_SERVE = """
import sys, time
from pathlib import Path
from tests.support.servers.hub import Hub
with Hub(store=Path(sys.argv[1])) as hub:
    print(hub.url, flush=True)
    for _ in sys.stdin:
        print(time.process_time(), flush=True)
"""


def bench_push(work: Path, shards: tuple[int, ...] = SHARDS) -> dict[str, Any]:
    """Push sets of so many shards, each to an empty Hub, and push each again with nothing to send.

    Returns:
        For each number of shards `push_N_s` and `again_N_s` of the push, `hub_N_s` of the Hub; `growth`, `hub_growth`.
    """
    figures: dict[str, Any] = {}
    for number in shards:
        folder = work / f"push-{number}"
        try:
            arrays = [count_up(SHARD_TOKENS, first=index * SHARD_TOKENS) for index in range(number)]
            write_token_set(folder / "set", {"train": arrays})
            with _hub(folder / "store") as (url, used):
                environment = os.environ | {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": WRITER}
                figures[f"push_{number}_s"] = _push(folder / "set", environment)
                figures[f"hub_{number}_s"] = used()
                figures[f"again_{number}_s"] = _push(folder / "set", environment)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    few, many = min(shards), max(shards)
    for name, of in (("growth", "push"), ("hub_growth", "hub")):
        figures[name] = figures[f"{of}_{many}_s"] / figures[f"{of}_{few}_s"] * few / many
    return figures


@contextlib.contextmanager
def _hub(store: Path) -> Generator[tuple[str, Callable[[], float]]]:
    """Run a Hub; yield its address, and a function that returns the seconds it has used since it started."""
    command = [sys.executable, "-c", _SERVE, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        address, asks, answers = server.stdout.readline().strip(), server.stdin, server.stdout

        def used() -> float:
            asks.write("\n")
            asks.flush()
            return float(answers.readline())

        started = used()
        yield address, lambda: used() - started


def _push(folder: Path, environment: dict[str, str]) -> float:
    """Return the seconds of a push in a new process, without its start."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.push", "--push", str(folder)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return float(ran.stdout)


def _push_here(folder: Path) -> float:
    from shards.hub.compare import compare_with_hub
    from shards.hub.push import push
    from shards.stores.address import parse_hub_address
    from shards.stores.hub_client import quiet_hub_client

    quiet_hub_client()
    import_module("huggingface_hub.hf_api")  # its loading is not the push's
    started = time.process_time()
    push(compare_with_hub(folder, parse_hub_address(f"{OWNER}/set")))
    return time.process_time() - started


def main() -> None:
    """Push sets of the sizes given and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=SHARDS, metavar="NUMBER")
    parser.add_argument("--work", type=Path, metavar="DIR", help="scratch (default: a temporary folder)")
    parser.add_argument("--push", type=Path, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.push:
        print(_push_here(flags.push))
        return
    with tempfile.TemporaryDirectory(prefix="tokenmill-push-", dir=flags.work) as folder:
        print(json.dumps(bench_push(Path(folder), tuple(flags.shards)), indent=2))


if __name__ == "__main__":
    main()

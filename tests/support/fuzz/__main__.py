"""Run hostile cases of a kind, each in a process of its own, and tell those that end in anything but a clear refusal.

    python -m tests.support.fuzz KIND --folder FOLDER [--seed 1] [--first 0] [--count 50]

A case is drawn from seed, kind and number alone. It runs `tokenmill`'s `main` in a fork of this process, which has
loaded what commands load, with 2 GB of memory and 20 s.
"""

# pyright: basic
from __future__ import annotations

import argparse
import atexit
import collections
import contextlib
import importlib
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from shards.stores import retry
from tests.support.fuzz.cases import KINDS, write_material
from tokenmill.__main__ import main

MEMORY, SECONDS = 2_000_000 << 10, 20.0
ESCAPED = 99
BAD = re.compile(
    r"Traceback|\w*Warning\b|<class|object at 0x|panicked|MemoryError|RecursionError|(?:Key|Index|Attribute|Type|Unicode\w*|Assertion|Runtime)Error"
)
"""What no message says."""
ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # mimalloc reserves 1 GB of addresses
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_ALLOW_HTTP": "true",
    "AWS_REGION": "us-east-1",
    "TOKENMILL_GIVE_UP_S": "1",
    "TOKENMILL_CONTENT_ENDPOINT": "http://127.0.0.1:9",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Addresses for memory alone, and no network."""


def state_of(*folders: Path) -> dict[str, tuple[int, ...]]:
    """Return what tells that a file has changed, of everything below some folders."""
    paths = [path for folder in folders for path in folder.rglob("*")]
    states = {str(path): path.lstat() for path in paths}
    return {
        path: (state.st_mode, state.st_ino, state.st_size, state.st_mtime_ns * (not path.endswith("/")))
        for path, state in states.items()
    }


def run_case(words: list[str], folder: Path) -> None:
    """Run a command line, and end this process with its status; its output goes to files."""
    os.setsid()
    os.chdir(folder / "out")
    for number, name in enumerate((os.devnull, folder / "stdout", folder / "stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    sys.stdout, sys.stderr = (
        open(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False) for number in (1, 2)
    )
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    status = ESCAPED
    try:
        status = main(words)
    except BaseException:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
    os._exit(status)


def faults_of(words: list[str], folder: Path, material: Path) -> Iterator[str]:
    """Run a case, and yield what is wrong with how it ends."""
    before = state_of(material, folder / "in")
    started = time.monotonic()
    process = os.fork()
    if not process:
        run_case(words, folder)
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() - started > SECONDS:
            yield f"took more than {SECONDS:.0f} s"
            break
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    _, ended = os.waitpid(process, 0)
    status = os.waitstatus_to_exitcode(ended)
    told, _printed = ((folder / name).read_text(errors="replace") for name in ("stderr", "stdout"))
    if status not in (0, 1, 2, 3, -signal.SIGKILL):
        yield f"status {status}"
    if found := BAD.search(told):
        yield f"says {found[0]}"
    if status in (1, 2):
        problems = [line for line in told.splitlines() if line.startswith("error: ")]
        if not problems and words[0] != "validate":
            yield "is refused without a word"
        if len(told) > 30_000:
            yield f"says {len(told)} characters"
    after = state_of(material, folder / "in")
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    own = tuple(str(folder / place) for place in ("in/run", "in/set.audit"))  # where these write unless they are told
    changed = [path for path in changed if not (words[0] in ("train", "plot", "report", "audit") and path.startswith(own))]
    if changed:
        yield f"changed {changed[:3]}"


def main_of_fuzz() -> int:
    """Run the cases and print the faults."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    if os.environ.get("MALLOC_ARENA_MAX") != "1":  # some of them are read when a library is loaded
        compiled = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenmill"
        homes = {"HOME": options.folder / "home", "XDG_CACHE_HOME": options.folder / "cache", "NUMBA_CACHE_DIR": compiled}
        os.execve(sys.executable, sys.orig_argv, os.environ | ENVIRONMENT | homes)
    retry.GIVE_UP_S = 1.0
    torch.set_num_threads(1)
    material = options.folder / "material"
    if not material.exists():
        material.mkdir(parents=True)
        if not os.fork():
            write_material(material)
            (options.folder / "modules").write_text("\n".join(sys.modules))
            os._exit(0)
        assert os.wait()[1] == 0
    for name in (options.folder / "modules").read_text().splitlines():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    failed = 0
    for number in range(options.first, options.first + options.count):
        folder = options.folder / f"{options.kind}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "in").mkdir(parents=True)
        (folder / "out").mkdir()
        words = KINDS[options.kind](random.Random(f"{options.seed} {options.kind} {number}"), material, folder / "in")
        words = [word.replace("\0", "") for word in words]
        faults = list(faults_of(words, folder, material))
        told = (folder / "stderr").read_text(errors="replace")
        if options.log:
            with options.log.open("a") as log:
                log.write(f"## {number} {words}\n{told[-1500:]}\n")
        if faults:
            failed += 1
            print(f"{options.kind} {number} of seed {options.seed}: {'; '.join(faults)}\n  {words}\n{told[-3000:]}\n")
        else:
            shutil.rmtree(folder)
    print(f"{failed} of {options.count} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main_of_fuzz())

"""Run hostile cases, each in a process of its own, and tell those that end in anything but a result or a refusal.

    python -m tests.support.fuzz KIND... --folder FOLDER [--seed 1] [--first 0] [--count 50]

A case is drawn from seed, kind and number alone. It calls `tokenmill`'s `main` in a fork of this process, which has
loaded what commands load, with 2 GB of addresses and 20 s of a processor. The folder of a case that fails is kept.
"""

# pyright: basic
import argparse
import atexit
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

from shards.stores import retry
from tests.support.fuzz.cases import KINDS, write_material
from tokenmill.__main__ import main

MEMORY, MOST_CHARACTERS = 2_000_000 << 10, 40_000
SECONDS, WAITED_SECONDS = 20, 120.0
"""Of a processor, and by the clock: other tests run beside this one."""
WAITS = "waits for"
ESCAPED = 99
"""The status of a case from which an exception escapes."""
BAD = re.compile(
    r"Traceback|\w*Warning\b|<class|object at 0x|panicked|MemoryError|RecursionError"
    r"|(?:Key|Index|Attribute|Type|Unicode\w*|Assertion|Runtime)Error"
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
    "TOKENMILL_NETWORK": '{"give_up_s": 1, "content_endpoint": "http://127.0.0.1:9"}',
    "TOKENIZERS_PARALLELISM": "false",
}
"""Addresses for memory that is used, and no network."""
OWN = ("in/run", "in/set.audit")
"""What commands write beside their input if they are not told where."""


def read_states(*folders: Path) -> dict[Path, tuple[int, ...]]:
    """Return what tells that a file has changed, of everything below some folders."""
    states = {path: path.lstat() for folder in folders for path in folder.rglob("*")}
    return {path: (one.st_mode, one.st_ino, one.st_size, one.st_mtime_ns) for path, one in states.items()}


def run_case(words: list[str], folder: Path) -> None:
    """Run a command line, and end this process with its status; its output goes to files."""
    os.setsid()
    os.chdir(folder / "out")
    os.environ["HOME"] = str(folder / "out")
    for number, name in enumerate((os.devnull, folder / "stdout", folder / "stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    for number, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace", closefd=False))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    status = ESCAPED
    try:
        status = main(words)
    except BaseException:  # noqa: BLE001  that is what is looked for
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
    os._exit(status)


def find_faults(words: list[str], folder: Path, material: Path) -> Iterator[str]:
    """Run a case, and yield what is wrong with how it ends."""
    before = read_states(material, folder / "in")
    started = time.monotonic()
    process = os.fork()
    if not process:
        run_case(words, folder)
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() - started > WAITED_SECONDS:
            yield f"{WAITS} more than {WAITED_SECONDS:.0f} s"
            break
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    told = (folder / "stderr").read_text(errors="replace")
    if status not in (0, 1, 2, 3, -signal.SIGKILL):
        yield f"ends with the status {status}"
    if found := BAD.search(told):
        yield f"says {found[0]}"
    # `validate` prints what it finds.
    if status in (1, 2) and not re.search("^error: ", told, re.MULTILINE) and words[0] != "validate":
        yield "is refused without a word"
    if len(told) > MOST_CHARACTERS:
        yield f"says {len(told):,} characters"
    after = read_states(material, folder / "in")
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    own = tuple(str(folder / place) for place in OWN)
    if changed := [str(path) for path in changed if not str(path).startswith(own)]:
        yield f"changes {changed[:3]}"


def try_case(seed: str, kind: str, folder: Path, material: Path) -> tuple[list[str], list[str]]:
    """Draw a case into a new folder and run it; return its command line and its faults."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "in").mkdir(parents=True)
    (folder / "out").mkdir()
    words = [word.replace("\0", "") for word in KINDS[kind](random.Random(seed), material, folder / "in")]
    return words, [*find_faults(words, folder, material)]


def load_modules(folder: Path) -> Path:
    """Write the material in a process of its own, load here what was loaded there, and return the material's folder."""
    material, modules = folder / "material", folder / "modules"
    if not modules.exists():
        material.mkdir(parents=True)
        if not os.fork():
            try:
                write_material(material)
                modules.write_text("\n".join(sys.modules))
            finally:
                os._exit(0)
        os.wait()
    for name in modules.read_text().splitlines():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return material


def fuzz() -> int:
    """Run the cases that the command line asks for, print the faults, and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=50, help="cases of each kind")
    options = parser.parse_args()
    if os.environ.get("MALLOC_ARENA_MAX") != "1":  # some of them are read when a library is loaded
        compiled = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenmill"
        caches = {"NUMBA_CACHE_DIR": str(compiled), "XDG_CACHE_HOME": str(options.folder / "cache")}
        os.execve(sys.executable, sys.orig_argv, os.environ | ENVIRONMENT | caches)
    retry.GIVE_UP_S = 1.0
    material = load_modules(options.folder)
    failed = 0
    for number in range(options.first, options.first + options.count):
        for kind in options.kinds:
            folder = options.folder / f"{kind}-{number}"
            words, faults = try_case(f"{options.seed} {kind} {number}", kind, folder, material)
            if any(WAITS in fault for fault in faults):  # a fork may have begun with a lock of a library's thread
                words, faults = try_case(f"{options.seed} {kind} {number}", kind, folder, material)
            if faults:
                failed += 1
                told = (folder / "stderr").read_text(errors="replace")[-3000:]
                print(f"{kind} {number} of seed {options.seed}: {'; '.join(faults)}\n  {words}\n{told}\n", flush=True)
            else:
                shutil.rmtree(folder)
    print(f"{failed} of {options.count * len(options.kinds)} cases failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(fuzz())

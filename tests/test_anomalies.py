"""A signal at the n-th import or system call, the n-th call that fails, too little memory: a command ends as promised.

The same command then does the rest, and its result is that of a command that was left alone. strace plants the calls.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.ablations import TRAIN, write_ablation
from tests.support.builds import build_here, call_here

EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
POINTS = 15
"""Of each kind of moment, spread over commands and calls; `make test-exhaustive` takes every one."""
pytestmark = pytest.mark.long

COMMANDS = {
    "build": "build {made}/data.toml --workers 1 --out {out}/set --json",
    "export": "export {made}/set --to nanogpt --out {out}/there --json",
    "train": "train {made}/train.toml --shards {made}/set --run {out}/run --json",
}
"""Each with what it writes below `{out}`."""
AT_IMPORT = """
import os, signal, sys
from tokenmill.__main__ import run
count, at, sent = 0, int(sys.argv.pop(1)), int(sys.argv.pop(1))
counted = os.open(sys.argv.pop(1), os.O_WRONLY)
def hook(event, _):
    global count
    if event == "import":
        count += 1
        os.pwrite(counted, b"%d" % count, 0)
        if count == at:
            os.kill(os.getpid(), sent)
sys.addaudithook(hook)
run()
"""
FAILING = {
    "write,pwrite64": "ENOSPC",
    "fsync,fdatasync": "EIO",
    "rename,renameat,renameat2": "EIO",
    "mkdir,mkdirat": "ENOSPC",
}
"""System calls of a kind, and the error of one of them."""


class Made(NamedTuple):
    """What the commands read, and what they write if they are left alone."""

    folder: Path
    results: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    write_ablation(folder, train={"eval": {"every_steps": 4}, "train": TRAIN["train"] | {"steps": 6}})
    build_here(folder / "data.toml", folder / "set")
    assert (
        call_here("train", folder / "train.toml", "--shards", folder / "set", "--run", folder / "run").returncode == 0
    )
    results = {}
    for name, command in COMMANDS.items():
        done = start(command, folder, folder / name)
        assert done.returncode == 0, done.stderr
        results[name] = read_result(folder / name)
    return Made(folder, results)


def start(command: str, made: Path, out: Path, *before: str, **options: int) -> subprocess.CompletedProcess[str]:
    """Run a command, or a program that is given its words; it has four minutes."""
    out.mkdir(exist_ok=True)
    words = command.format(made=made, out=out).split()
    given = [*(before or (sys.executable, "-m", "tokenmill")), *words]
    memory = options.get("memory")
    limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory))) if memory else None
    return subprocess.run(given, capture_output=True, text=True, timeout=240, check=False, preexec_fn=limit)


def read_result(out: Path) -> dict[str, str]:
    """Return the SHA-256 of the files that a command writes, but of those that hold times."""
    files = [path for path in out.rglob("*") if path.is_file() and ".work" not in str(path.relative_to(out))]
    if (out / "run").exists():
        files = [path for path in files if path.name == "model.safetensors"]
    names = {str(path.relative_to(out)): path for path in files if path.name != ".recipe-folder"}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(names.items())}


def choose(seed: str, counts: dict[str, int]) -> list[tuple[str, int]]:
    """Return kinds with the number of one of their calls, from 1 on; some of each kind, or all."""
    if EXHAUSTIVE:
        return [(kind, number + 1) for kind, count in counts.items() for number in range(count)]
    chance = random.Random(seed)
    kinds = [kind for kind, count in counts.items() if count]
    return [(kind, chance.randrange(counts[kind]) + 1) for kind in (kinds * POINTS)[:POINTS]]


def expect_rest(name: str, made: Made, out: Path, where: str) -> None:
    """Run a command again, unless it had ended but for what it says: its result is whole."""
    if read_result(out) != made.results[name]:
        again = start(COMMANDS[name], made.folder, out)
        assert again.returncode == 0, (where, again.stderr)
        assert read_result(out) == made.results[name], where
    shutil.rmtree(out)


def strace(calls: str, inject: str = "", output: str = "/dev/null") -> list[str]:
    """Return the command line that plants what happens at system calls of any thread, or writes them to a file."""
    plan = ["-e", f"inject={calls}:{inject}"] if inject else []
    program = [sys.executable, "-m", "tokenmill"]
    return ["strace", "-f", "--seccomp-bpf", "-qq", "-e", f"trace={calls}", *plan, "-o", output, *program]


needs_strace = pytest.mark.skipif(
    not shutil.which("strace") or subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False).returncode,
    reason="strace may not trace here",
)


def test_a_signal_at_an_import_ends_a_command(made: Made, tmp_path: Path) -> None:
    counted, counts = tmp_path / "count", {}

    def run(name: str, at: int, sent: int, out: Path) -> subprocess.CompletedProcess[str]:
        counted.write_text("")
        program = (sys.executable, "-c", AT_IMPORT, str(at), str(sent), str(counted))
        return start(COMMANDS[name], made.folder, out, *program)

    for name in COMMANDS:
        assert run(name, 0, 0, tmp_path / "all").returncode == 0
        counts[name] = int(counted.read_text())
    for number, (name, at) in enumerate(choose("imports", counts)):
        sent = (signal.SIGTERM, signal.SIGINT)[number % 2]
        where, out = f"{name}: {sent.name} at import {at} of {counts[name]}", tmp_path / "out"
        done = run(name, at, sent, out)
        check_ended(done, where, {130, 128 + sent})
        expect_rest(name, made, out, where)


@needs_strace
def test_a_signal_at_a_system_call_ends_a_command(made: Made, tmp_path: Path) -> None:
    calls = "%file,%desc,mmap,munmap"
    counts = {name: count_calls(calls, command, made, tmp_path / name) for name, command in COMMANDS.items()}
    for name, at in choose("calls", counts):
        where, out = f"{name}: SIGTERM at call {at} of {counts[name]}", tmp_path / "out"
        done = start(COMMANDS[name], made.folder, out, *strace(calls, f"signal=SIGTERM:when={at}"))
        check_ended(done, where, {130, 143, -signal.SIGTERM})
        expect_rest(name, made, out, where)


@needs_strace
def test_a_system_call_that_fails_ends_a_command(made: Made, tmp_path: Path) -> None:
    counts = {
        f"{name} {calls}": count_calls(calls, command, made, tmp_path / name)
        for name, command in COMMANDS.items()
        for calls in FAILING
    }
    for kind, at in choose("failures", counts):
        name, calls = kind.split()
        where, out = f"{name}: {FAILING[calls]} of call {at} of {counts[kind]}, {calls}", tmp_path / "out"
        done = start(COMMANDS[name], made.folder, out, *strace(calls, f"error={FAILING[calls]}:when={at}"))
        check_ended(done, where, {1, 2})
        expect_rest(name, made, out, where)


def test_too_little_memory_ends_a_command(made: Made, tmp_path: Path) -> None:
    for number in range(20):
        name = list(COMMANDS)[number % len(COMMANDS)]
        where, out = f"{name}: {number}", tmp_path / "out"
        done = start(COMMANDS[name], made.folder, out, memory=(200 + 100 * number) << 20)
        check_ended(done, where, {1, 2})
        expect_rest(name, made, out, where)


def check_ended(done: subprocess.CompletedProcess[str], where: str, statuses: set[int]) -> None:
    """Check that a command has said why it ended, if it has not gone on to its end."""
    assert "Traceback" not in done.stderr, (where, done.stderr)
    assert done.returncode in statuses | {0}, (where, done.returncode, done.stderr)


def count_calls(calls: str, command: str, made: Made, out: Path) -> int:
    """Return how many system calls of a kind the main thread of a command makes."""
    done = start(command, made.folder, out, *strace(calls, output=str(out.with_suffix(".calls"))))
    assert done.returncode == 0, done.stderr
    shutil.rmtree(out)
    threads = [line.split()[0] for line in out.with_suffix(".calls").read_text().splitlines()]
    return threads.count(threads[0]) if threads else 0

"""A signal at the n-th import or system call, the n-th call that fails, little memory: a command ends as promised.

The same command then does the rest, and its result is that of a command that was left alone. strace plants the calls.
"""

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.ablations import TRAIN, write_ablation
from tests.support.builds import build_here
from tests.support.servers.hub import Hub
from tests.support.servers.hub_writes import WRITER

EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
POINTS = {"build": 5, "export": 3, "export-model": 1, "push": 3, "train": 2}
"""Of each command and kind of moment; `make test-exhaustive` takes every one. What loads torch takes long."""
DOING = 0.95
"""A signal is sent in this part of a command: behind it, all is done."""
pytestmark = pytest.mark.long

COMMANDS = {
    "build": "build {made}/data.toml --workers 1 --out {out}/set --json",
    "export": "export {made}/set --to nanogpt --out {out}/there --json",
    "export-model": "export-model {made}/run --to hf --out {out}/model --json",
    "push": "push {made}/set tester/set --threads 1 --json",
    "train": "train {made}/train.toml --shards {made}/set --run {out}/run --json",
}
"""Each with what it writes below `{out}`, or to the Hub."""
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
    "write": "ENOSPC",
    "pwrite64": "ENOSPC",
    "fsync": "EIO",
    "rename": "EIO",
    "mkdir": "ENOSPC",
}
"""System calls, each with the error of one of them. strace counts those of each name by themselves."""
CALLS = ["openat", "read", "newfstatat", "mmap", "lseek"]
"""System calls at which a signal is sent."""
MEMORY_STEPS = [int(2 ** (25 + step / 2)) for step in range(20)]
"""Bytes of addresses that a command may have: from those without which Python does not start to more than enough."""


class Made(NamedTuple):
    """What the commands read, where they write, and what those write that are left alone."""

    folder: Path
    hub: Hub
    results: dict[str, dict[str, str]]

    def find_result(self, name: str) -> dict[str, str]:
        """Return what a command writes that is left alone."""
        if name not in self.results:
            done = start(name, self, self.folder / name)
            assert done.returncode == 0, done.stderr
            self.results[name] = read_result(name, self, self.folder / name)
            if name == "train":
                (self.folder / name / "run").rename(self.folder / "run")
            forget(self, self.folder / name)
        return self.results[name]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("made")
    write_ablation(folder, train={"eval": {"every_steps": 4}, "train": TRAIN["train"] | {"steps": 6}})
    build_here(folder / "data.toml", folder / "set")
    with Hub(store=folder / "store") as hub:
        yield Made(folder, hub, {})


def start(name: str, made: Made, out: Path, *program: str) -> subprocess.CompletedProcess[str]:
    """Run a command, or a program that is given its words; it has four minutes."""
    if name == "export-model":
        made.find_result("train")
    out.mkdir(exist_ok=True)
    words = COMMANDS[name].format(made=made.folder, out=out).split()
    given = [*(program or (sys.executable, "-m", "tokenmill")), *words]
    hub = {"HF_ENDPOINT": made.hub.url, "HF_TOKEN": WRITER, "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(given, env=os.environ | hub, capture_output=True, text=True, timeout=240, check=False)


def read_result(name: str, made: Made, out: Path) -> dict[str, str]:
    """Return the SHA-256 of the files that a command writes, but of those that hold times."""
    if name == "push":
        snapshots = [repo.snapshots[repo.refs["main"]] for repo in made.hub.repos.values()]
        return {path: entry.sha256 for snapshot in snapshots for path, entry in snapshot.files.items()}
    files = [path for path in out.rglob("*") if path.is_file() and ".work" not in str(path.relative_to(out))]
    if (out / "run").exists():
        files = [path for path in files if path.name == "model.safetensors"]
    names = {str(path.relative_to(out)): path for path in files if path.name != ".recipe-folder"}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(names.items())}


def choose(name: str, counts: dict[str, int]) -> list[tuple[str, int]]:
    """Return kinds of calls of a command, each with the number of one, from 1 on: some, or all."""
    if EXHAUSTIVE:
        return [(kind, number + 1) for kind, count in counts.items() for number in range(count)]
    chance, kinds = random.Random(name), [kind for kind, count in counts.items() if count]
    return [(kind, chance.randrange(counts[kind]) + 1) for kind in chance.sample(kinds * POINTS[name], POINTS[name])]


def expect_rest(name: str, made: Made, out: Path) -> None:
    """Run a command again, unless it had ended but for what it says: its result is whole."""
    if read_result(name, made, out) != made.find_result(name):
        again = start(name, made, out)
        assert again.returncode == 0, again.stderr
        assert read_result(name, made, out) == made.find_result(name)
    forget(made, out)


def forget(made: Made, out: Path) -> None:
    """Remove what a command has written."""
    shutil.rmtree(out)
    made.hub.repos.clear()
    for path in (made.folder / "store").iterdir():
        path.unlink()


def strace(calls: str, inject: str = "", output: str = "/dev/null") -> list[str]:
    """Return the command line that plants what happens at system calls of any thread, or writes them to a file."""
    plan = ["-e", f"inject={calls}:{inject}"] if inject else []
    program = [sys.executable, "-m", "tokenmill"]
    return ["strace", "-f", "-qq", "-e", f"trace={calls}", *plan, "-o", output, *program]


needs_strace = pytest.mark.skipif(
    not shutil.which("strace")
    or subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False).returncode != 0,
    reason="strace may not trace here",
)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_at_an_import_ends_a_command(name: str, made: Made, tmp_path: Path):
    counted = tmp_path / "count"

    def run(at: int, sent: int, out: Path) -> subprocess.CompletedProcess[str]:
        counted.write_text("")
        return start(name, made, out, sys.executable, "-c", AT_IMPORT, str(at), str(sent), str(counted))

    assert run(0, 0, tmp_path / "all").returncode == 0
    for number, (_, at) in enumerate(choose(name, {"": int(DOING * int(counted.read_text()))})):
        sent = (signal.SIGTERM, signal.SIGINT)[number % 2]
        done = run(at, sent, tmp_path / "out")
        check_ended(done, f"{sent.name} at import {at}", {130, 128 + sent})
        expect_rest(name, made, tmp_path / "out")


@needs_strace
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_at_a_system_call_ends_a_command(name: str, made: Made, tmp_path: Path):
    counts = count_calls(name, CALLS, made, tmp_path)
    for calls, at in choose(name, {calls: int(DOING * count) for calls, count in counts.items()}):
        done = start(name, made, tmp_path / "out", *strace(calls, f"signal=SIGTERM:when={at}"))
        check_ended(done, f"SIGTERM at call {at} of {calls}", {130, 143, -signal.SIGTERM})
        expect_rest(name, made, tmp_path / "out")


@needs_strace
@pytest.mark.parametrize("name", COMMANDS)
def test_a_system_call_that_fails_ends_a_command(name: str, made: Made, tmp_path: Path):
    for calls, at in choose(name, count_calls(name, FAILING, made, tmp_path)):
        done = start(name, made, tmp_path / "out", *strace(calls, f"error={FAILING[calls]}:when={at}"))
        # 0: what could not be written is a message.
        check_ended(done, f"{FAILING[calls]} of call {at} of {calls}", {0, 1, 2})
        expect_rest(name, made, tmp_path / "out")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_with_little_memory_says_so(name: str, made: Made, tmp_path: Path):
    steps = MEMORY_STEPS if EXHAUSTIVE else [*random.Random(name).sample(MEMORY_STEPS[3:11], 2), MEMORY_STEPS[-1]]
    for most in steps:
        limited = ("sh", "-c", f'ulimit -v {most >> 10}; exec "$@"', "sh", sys.executable)
        if subprocess.run([*limited, "-c", "import pydantic"], capture_output=True, check=False).returncode == 0:
            done = start(name, made, tmp_path / "out", *limited, "-m", "tokenmill")
            # A library may end the process, and Python may lack memory for its own end (120).
            lacks = {0, 1, 2, 120, -signal.SIGABRT, -signal.SIGSEGV}
            check_ended(done, f"{most:,} bytes of memory", lacks if most < max(steps) else {0})
            expect_rest(name, made, tmp_path / "out")


def check_ended(done: subprocess.CompletedProcess[str], where: str, statuses: set[int]) -> None:
    """Check how a command has ended, and that it is no accident."""
    assert "Traceback" not in done.stderr, (where, done.stderr)
    assert done.returncode in statuses, (where, done.returncode, done.stderr)


def count_calls(name: str, kinds: Iterable[str], made: Made, folder: Path) -> dict[str, int]:
    """Return how many system calls of each kind the main thread of a command makes."""
    done = start(name, made, folder / "counted", *strace(",".join(kinds), output=str(folder / "calls")))
    assert done.returncode == 0, done.stderr
    forget(made, folder / "counted")
    calls = re.findall(r"^(\d+) +(\w+)\(", (folder / "calls").read_text(), re.MULTILINE)
    counts = Counter(kind for thread, kind in calls if thread == calls[0][0])
    return {kind: counts[kind] for kind in kinds}

"""Commands that get a signal at some moment: they end within seconds, and leave no process behind and no open pipe."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.ablations import TRAIN, write_ablation
from tests.support.builds import build_here, wait_until
from tests.support.started import session_processes
from tokenmill.__main__ import _interrupt  # pyright: ignore[reportPrivateUsage]

EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
COUNT = 200 if EXHAUSTIVE else 10
SECONDS = 45.0
"""How long a command may take to end on a very busy machine; alone it takes 1 to 4. An interrupt waits for the end of
an import, and of a validation."""
COMMANDS = [
    "audit {set} --workers 2 --out {out}",
    "report {set} --workers 2 --out {out}",
    "validate {set} --threads 2",
    "trace {set} --text a --workers 2",
    "export {set} --to nanogpt --out {out}",
    "build {recipe} --workers 2 --out {out}",
    "train {train} --shards {set} --run {out}",
]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL]
TOLD = "error: interrupted; run the same command to resume\n"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_ablation(folder, train={"train": TRAIN["train"] | {"steps": 200}})
    build_here(folder / "data.toml", folder / "set")
    return folder


@pytest.mark.parametrize("number", range(COUNT))
def test_a_signal_ends_a_command_and_all_that_it_started(made: Path, tmp_path: Path, number: int):
    chance = random.Random(number)
    command = COMMANDS[number % len(COMMANDS)]
    sent = SIGNALS[(number + number // len(COMMANDS)) % len(SIGNALS)]
    files = {"set": made / "set", "recipe": made / "data.toml", "train": made / "train.toml", "out": tmp_path / "out"}
    words = command.format(**files).split()
    with subprocess.Popen(
        [sys.executable, "-m", "tokenmill", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        time.sleep(chance.uniform(0.3, 1.5) * (4 if words[0] == "train" else 1))
        (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)  # a terminal interrupts all processes
        # The pipes are closed only when the last process that has them open has ended.
        try:
            _, told = process.communicate(timeout=SECONDS)
        finally:
            left = session_processes(process.pid)
            process.kill()
    wait_until(lambda: not session_processes(process.pid), f"what is left of {command} after {sent.name}: {left}")
    if sent in (signal.SIGINT, signal.SIGTERM):
        assert "Traceback" not in told, told
        # -sent: before the program has begun; 128 + sent: `train` has saved a checkpoint.
        assert process.returncode in (0, 1, 130, 128 + sent, -sent), told


@pytest.mark.parametrize(
    ("module", "words"), [("shards.cli.audit", "audit ."), ("pipeline.cli.build", "build demo --out set")]
)
@pytest.mark.parametrize(
    "call",
    [
        # Of `python -m`, Python makes a SIGINT if code that a library makes of text has been interrupted.
        'exec("signal.raise_signal(signal.SIGTERM)")',
        # What Rust makes of it is no `Exception`, or a pattern of which no file's checksum is one: also an answer.
        "panic(None)",
        'panic(BaseException("a panic"))',
        'panic(set_error("manifest_invalid", "manifest.json", "sha256"))',
        'train("gpt2", signal.SIGINT)',
        'train("gpt2", signal.SIGKILL)',
        'train("llama3", signal.SIGTERM)',
    ],
)
def test_an_interrupt_inside_a_library_ends_a_command_as_any_other(call: str, module: str, words: str, tmp_path: Path):
    program = f"""
import os, signal, sys, threading
from pathlib import Path
import numpy as np
import {module} as command
from pipeline.tokenizer.train import train_merges
from shards.errors import set_error
from shards.terminal.program import Outcome
from tokenmill.__main__ import run
def panic(of_library):
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt as error:
        if of_library:
            raise of_library from error
        return Outcome({{}}, ["a false problem"], 1)
def train(name, sent):
    letters = np.random.default_rng(1).integers(97, 123, 20_000_000, np.uint8)
    letters[::8] = 32
    Path("sample.bin").write_bytes(letters.tobytes())
    threading.Timer(1, os.kill, (os.getpid(), sent)).start()
    train_merges(Path("sample.bin"), 60_000, [], name)
command.run = lambda _: {call}
sys.argv = ["tokenmill", *"{words}".split()]
run()
"""
    (tmp_path / "patched.py").write_text(program)
    command = [sys.executable, "-m", "patched"]
    # It returns when the last process that has its pipes open has ended: long before the training would.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SECONDS / 2)
    found = done.returncode, done.stdout, "KILL" in call or done.stderr
    assert found == ((-9, "", True) if "KILL" in call else (130, "", TOLD))


def test_an_interrupt_before_the_command_is_told():
    program = "import signal; from tokenmill import __main__ as program\n"
    program += "program.main = lambda _: signal.raise_signal(signal.SIGTERM); program.run()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_a_signal_after_the_command_ends_the_process_at_once(tmp_path: Path):
    (tmp_path / "late.py").write_text("import signal, time; signal.raise_signal(signal.SIGTERM); time.sleep(0.1)")
    program = "import atexit; from tokenmill import __main__ as program\n"
    program += "program.main = lambda _: atexit.register(__import__, 'late') and 0; program.run()"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")


@pytest.mark.parametrize("delay_s", [0.02, 0.05, 0.1, 0.2])
def test_an_interrupt_of_all_processes_ends_no_worker(delay_s: float):
    program = "import os, signal, time; from shards.terminal.workers import map_tasks, start_server\n"
    program += "signal.signal(signal.SIGINT, lambda *_: None); start_server(['json'])\n"
    program += f"time.sleep({delay_s}); os.killpg(0, signal.SIGINT); print(*map_tasks(pow, 2, [3, 4], 2))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, start_new_session=True
    )
    assert (done.stdout, done.stderr) == ("(3, 8) (4, 16)\n", "")


def test_an_interrupt_in_an_import_is_told_a_little_later(monkeypatch: pytest.MonkeyPatch):
    """Python may hold the lock of all imports, at which threads would wait for ever, or a module catches it."""
    monkeypatch.setattr("tokenmill.__main__._interrupts", [])
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    importing = SimpleNamespace(f_code=SimpleNamespace(co_filename="<frozen importlib._bootstrap>"))
    frame = SimpleNamespace(f_code=SimpleNamespace(co_filename="torch/__init__.py"), f_back=importing)
    try:
        _interrupt(signal.SIGINT, frame)  # pyright: ignore[reportArgumentType]
    except KeyboardInterrupt:
        pytest.fail("told at once")
    with pytest.raises(KeyboardInterrupt):
        time.sleep(SECONDS)
    signal.signal(signal.SIGALRM, before)

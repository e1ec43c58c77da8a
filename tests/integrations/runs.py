"""Runs of the page's code that are killed and resumed, and the check that no sample is missed or read twice."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from shards.format.writer import write_token_set
from shards.torch import TokenWindows
from tests.support.token_sets import count_up

REPOSITORY = Path(__file__).parents[2]
VOCAB_SIZE = 4096
SEQ_LEN = 128
SAMPLES = 160
"""That every block of the page reads."""
OTHER_SEED = ("seq_len=128", "seq_len=128, seed=7")
MARK = "TESTED_RUN"
"""The variable by which the processes of a run are found again."""
OTHER_ORDER = "the checkpoint is from a different set, split, seq_len"


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a block: on how many ranks, with what changed in its code, killed after how many steps."""

    ranks: int = 1
    changed: Sequence[tuple[str, str]] = ()
    kill_after: int | None = None
    refused: str | None = None
    """What the program says before it ends with status 1, without a step."""
    torchrun: bool = False
    """Whether one rank is started by torchrun too, and not as a plain program."""


def run_until_done(
    title: str, folder: Path, starts: Sequence[Start], *, then: str | None = None
) -> list[list[list[int]]]:
    """Run a section's code in a folder, once for each start; all but the last are killed.

    Args:
        title: of the section.
        folder: the working directory; the set is its out/demo.
        starts: what to run, in order.
        then: a file of this folder with the loop that the section's code lacks.

    Returns:
        For each start that is not refused, for each of its steps, the numbers of the samples of all ranks, sorted.
    """
    tokens = [count_up(12_500, vocab_size=VOCAB_SIZE, document_tokens=37, first=first) for first in (0, 2_000)]
    val = [count_up(1_000, vocab_size=VOCAB_SIZE)]
    shard_set = write_token_set(folder / "out/demo", {"train": tokens, "val": val}, vocab_size=VOCAB_SIZE)
    rows = TokenWindows(shard_set, seq_len=SEQ_LEN, samples=SAMPLES).read(range(SAMPLES))["input_ids"]
    numbers = {tuple(row): number for number, row in enumerate(rows.tolist())}
    assert len(numbers) == SAMPLES
    found: list[list[list[int]]] = []
    for index, start in enumerate(starts):
        record = folder / f"record-{index}"
        record.mkdir()
        status, stderr = _run(title, folder, record, start, then)
        if start.refused is not None:
            assert (status, list(record.glob("*.jsonl"))) == (1, []), stderr[-4000:]
            assert start.refused in stderr
            continue
        killed = status == -signal.SIGKILL or "exitcode  : -9" in stderr  # of a rank, says torchrun
        assert killed if start.kill_after is not None else status == 0, f"exit {status}\n{stderr[-4000:]}"
        ranks = [
            [[numbers[tuple(row)] for row in json.loads(line)] for line in path.read_text().splitlines()]
            for path in sorted(record.glob("*.jsonl"))
        ]
        assert len(ranks) == start.ranks
        steps = min(map(len, ranks))  # a rank may have begun the step in which the other was killed
        found.append([sorted(number for rank in ranks for number in rank[step]) for step in range(steps)])
    return found


def assert_goes_on(found: Sequence[Sequence[Sequence[int]]]) -> None:
    """Check each step's samples: each start goes on where the last save of the one before was, and the last ends.

    On the page, a step has 8 samples of all ranks, and every third one is saved.
    """
    begin = 0
    for steps in found:
        read = [number for step in steps for number in step]
        assert read == list(range(begin, begin + len(read)))
        assert all(len(step) == 8 for step in steps)
        begin += len(steps) // 3 * 3 * 8
    assert read[-1] == SAMPLES - 1


def _run(title: str, folder: Path, record: Path, start: Start, then: str | None) -> tuple[int, str]:
    """Run a section's code once; return its exit status and what it wrote to stderr."""
    launcher, module = [sys.executable], ["-m", "tests.integrations.run_block"]
    if start.ranks > 1 or start.torchrun:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={start.ranks}"]
        module.insert(1, "--")
    options = [word for change in start.changed for word in ("--change", *change)]
    if start.kill_after is not None:
        options += ["--kill-after", str(start.kill_after)]
    if then is not None:
        options += ["--then", str(Path(__file__).with_name(then))]
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        MARK: str(record),
    }
    command = [*launcher, *module, title, str(record), *options]
    with (record / "stderr").open("w+") as stderr:
        # A file and not a pipe: Grain's workers outlive the process that is killed.
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            status = process.wait(timeout=200)
        finally:
            while _kill_processes(f"{MARK}={record}"):
                time.sleep(0.05)
            process.wait()
        stderr.seek(0)
        return status, stderr.read()


def _kill_processes(variable: str) -> int:
    """Kill the processes that have inherited a variable, and return how many there were.

    torchrun starts each rank in a session of its own, so no process group holds the workers of a rank that is killed.
    """
    found = 0
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            if variable.encode() in environ.read_bytes().split(b"\0"):
                found += 1
                os.kill(int(environ.parent.name), signal.SIGKILL)
    return found

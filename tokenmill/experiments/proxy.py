"""The training of one proxy: one arm with one seed, as a task of the engine.

The training is a process of its own, `tokenmill train`, in a run folder that survives it: a task that is killed
goes on from the run's last checkpoint. On a machine with GPUs each training holds one of them.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from filelock import FileLock, Timeout

from pipeline.engine.checksums import write_checksummed
from pipeline.engine.receipts import Result
from pipeline.engine.tasks import NOT_IN_DIGEST, InDigest, Payload, Report, digest_of_payload
from shards.errors import InputError, plural
from shards.stores.files import no_follow, write_text
from shards.terminal.display import JsonObject, say
from shards.terminal.program import COULD_NOT_RUN
from shards.terminal.workers import WORKER_ENVIRONMENT, end_with_parent
from trainer.metrics import METRICS_FILE, last_record, read_metrics
from trainer.run_folder import RECIPE_FILE, RUN_FILE, TOKENIZER_FILE

PROXY_FILE, LOG_FILE, OUTCOME_FILE = ".proxy.json", "train.log", "outcome.json"
"""In the run folder: the train recipe; what `train` said; and, when it is done, its result. `train` takes a folder with
hidden files and logs for a new one."""
_RESULT_FILES = (METRICS_FILE, RECIPE_FILE, RUN_FILE, TOKENIZER_FILE)
_WITHOUT_EFFECT = ("name", "checkpoint", "log", "cost", "phases")
"""Sections of a train recipe that do not change a score."""
_NOT_INHERITED = (*WORKER_ENVIRONMENT, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_POLL_SECONDS, _MOST_READING = 0.25, 0.05
"""Metrics are read again after some time, of which reading takes this part at most: 10,000 steps take 0.4 s."""
_ATTEMPTS = 2
"""How often a training that fails is started; it goes on from its last checkpoint."""
_SHOWN_LINES = 5


def scored_keys(recipe: JsonObject) -> JsonObject:
    """Return the part of a proxy's train recipe that may change a score."""
    return {key: value for key, value in recipe.items() if key not in _WITHOUT_EFFECT}


@dataclass(frozen=True, slots=True)
class ProxyTask(Payload):
    """The training of one arm with one seed."""

    CODE: ClassVar = 2
    LIBRARIES: ClassVar = ("torch",)

    data: str
    """The digest of what decides the set."""
    evals: str
    """The digest of what decides the text of the eval sets and tasks."""
    recipe: Annotated[JsonObject, InDigest(scored_keys)]
    """The train recipe with the seed."""
    threads: int
    """Threads of the training on a CPU."""
    shards: Annotated[str, NOT_IN_DIGEST]
    """The folder of the set."""
    run: Annotated[str, NOT_IN_DIGEST]
    """The run folder, without the digest of the task that ends its name: only one training has it."""


@dataclass(slots=True, kw_only=True)
class ProxyResult(Result):
    """The result of a training; its files are those of the run folder but the checkpoints."""

    failed: str = ""
    """Why the training failed; empty if it did not."""
    scores: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    """Each score's `value` and `stderr`."""
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """By eval set or task, the digest of the text that was scored."""
    trained_seconds: float = 0.0
    tokens_repeated: int = 0


def train_proxy(folder: Path, payload: ProxyTask, report: Report) -> ProxyResult:
    """Train one proxy, or go on where an earlier attempt stopped, and return its scores.

    Raises:
        InputError: no GPU may be used.
        OSError: the run folder cannot be used.
    """
    run = Path(f"{payload.run}-{digest_of_payload(payload)[:8]}")
    run.mkdir(parents=True, exist_ok=True)
    failed = ""
    if not (run / OUTCOME_FILE).is_file():
        with hold_gpu(payload.recipe["train"]["device"]) as gpu:
            for _ in range(_ATTEMPTS):
                failed, may_retry = _train(run, payload, gpu, report)
                if not may_retry:
                    break
    # The small files of the run are the task's result; checkpoints are large.
    result = ProxyResult(failed=failed)
    for name in _RESULT_FILES:
        if (run / name).is_file():
            result.files[name] = write_checksummed(folder / name, (run / name).read_bytes())
    if failed:
        say(f"{run.parent.name} {run.name}: failed: {failed}")
        return result
    outcome: JsonObject = json.loads((run / OUTCOME_FILE).read_bytes())
    result.scores = outcome["scores"]
    result.texts = {name: note["sha256"] for name, note in outcome["score_notes"].items() if "sha256" in note}
    result.trained_seconds, result.tokens_repeated = outcome["seconds"], outcome["tokens_repeated"]
    report(outcome["tokens_used"], outcome["tokens_used"])
    shown = ", ".join(f"{name} {score['value']:.4f}" for name, score in result.scores.items())
    say(f"{run.parent.name} {run.name}: {shown}")
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    return result


def _train(run: Path, payload: ProxyTask, gpu: str | None, report: Report) -> tuple[str, bool]:
    """Train a proxy with `train` to its end. Return why it failed, and whether another attempt may not; or nothing."""
    # The command is the one that a person would call.
    write_text(run / PROXY_FILE, json.dumps(payload.recipe))
    command = [sys.executable, "-m", "tokenmill", "train", str(run / PROXY_FILE), "--shards", payload.shards]
    # A loss that spikes is an arm's result, too.
    command += ["--run", str(run), "--set", "train.smoke_steps=0", "--set", "train.spike_nats=1000", "--json"]
    environment = dict(os.environ, OMP_NUM_THREADS=str(payload.threads), MKL_NUM_THREADS=str(payload.threads))
    # Settings of a build's workers, or of ranks, are not those of a training.
    for name in _NOT_INHERITED:
        environment.pop(name, None)
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    outcome = run / f".{OUTCOME_FILE}"
    with open(run / LOG_FILE, "ab", opener=no_follow) as log, open(outcome, "wb", opener=no_follow) as printed:
        logged = log.tell()
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": printed, "stderr": log}
        process = subprocess.Popen(command, env=environment, preexec_fn=end_with_parent, **streams)
    # Progress comes from the metrics, until the process ends.
    try:
        pause = _POLL_SECONDS
        while process.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pause)
            began = time.perf_counter()
            done = int(last_record(read_metrics(run), "tokens").get("tokens", 0))
            report(done, done)
            pause = max(_POLL_SECONDS, (time.perf_counter() - began) / _MOST_READING)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode == 0:
        write_text(run / OUTCOME_FILE, outcome.read_text())
        outcome.unlink()
        return "", False
    if process.returncode < 0:
        ended_by = signal.Signals(-process.returncode)
        hint = ", as the system does when memory is short" if ended_by == signal.SIGKILL else ""
        return f"killed by {ended_by.name}{hint}; its log is {run / LOG_FILE}", True
    # The errors of this attempt, or its last lines if it named none.
    lines = (run / LOG_FILE).read_bytes()[logged:].decode(errors="replace").splitlines()
    errors = [line for line in lines if line.startswith("error: ")] or lines
    return (
        f"exit status {process.returncode}: {' '.join(errors[-_SHOWN_LINES:])} (all of it in {run / LOG_FILE})",
        process.returncode != COULD_NOT_RUN,
    )


@contextlib.contextmanager
def hold_gpu(device: str) -> Generator[str | None]:
    """Hold one GPU of this machine for a proxy, so that trainings have one each; wait while none is free.

    Args:
        device: `train.device` of the train recipe.

    Yields:
        The number of the GPU, as CUDA_VISIBLE_DEVICES takes it; None if the training takes none.

    Raises:
        InputError: the machine has GPUs, and this process may use none.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    gpus = visible.split(",") if visible is not None else [str(index) for index in range(count)]
    if device == "cpu" or not any(gpus):
        if device != "cpu" and count:
            raise InputError(
                f"this task may use none of the {plural(count, 'GPU')} of its machine: CUDA_VISIBLE_DEVICES is empty. "
                "Ray empties it for tasks that ask for no GPU: set RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0 on its nodes. "
                'Or train on the CPU: train.device = "cpu".'
            )
        yield None
        return
    # The first GPU whose lock is free; none may be.
    while True:
        for gpu in filter(None, gpus):
            lock = FileLock(Path(tempfile.gettempdir()) / f"tokenmill-gpu-{gpu}.lock", mode=0o666)
            with contextlib.suppress(Timeout), lock.acquire(timeout=0):
                yield gpu
                return
        threading.Event().wait(1.0)

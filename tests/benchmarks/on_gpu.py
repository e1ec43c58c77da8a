"""Measure the trainer on a GPU that is rented by the minute: `python -m tests.benchmarks.on_gpu [SECONDS]`.

The most valuable measurement comes first, and nothing begins that would not end in time: whole steps of the recipes
with goals and their validation, what the card reaches, the kernels of a few layers. With `--build`, builds and loaders
on many cores instead; with `--rows`, packed rows beside windows, which three minutes suffice for. Each measurement is
one JSON line, printed at once and added to `on_gpu.jsonl` in the folder OUT of the environment. Without a GPU all of it
is rehearsed on tiny sizes. No network.
"""

import argparse
import contextlib
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from shards.terminal.reporter import no_note, no_progress
from tests.benchmarks.harness import ROOT
from tests.benchmarks.many_cores import measure_cores
from trainer.commands.timed_steps import WARMUP, take_our_steps, write_made_up_set
from trainer.device import autocast, choose_device
from trainer.evaluation.evaluate import evaluate
from trainer.model import decoder
from trainer.recipe import TrainRecipe, load_train_recipe
from trainer.session import open_session
from trainer.train.step import open_training_windows

TINY = (
    *("model.hidden_size=64", "model.intermediate_size=64", "model.num_attention_heads=2", "model.vocab_size=250"),
    *("model.num_key_value_heads=2", "model.num_hidden_layers=2", "model.max_position_embeddings=32"),
    *("train.seq_len=32", "train.global_batch=4", "train.micro_batch=4", "train.compile=false", "train.smoke_steps=0"),
)
"""What makes a recipe small enough for a rehearsal."""
VOCABULARY = "model.vocab_size=32_005"
LEAST_S, MOST_S = 60, 180
"""Seconds that must be left for a recipe's steps to begin, and after which they are ended."""
Trial = tuple[str, tuple[str, ...]]
"""A recipe whose whole steps are timed, and changes to it."""
GOALS: tuple[Trial, ...] = (
    ("tinystories-91m", ()),
    ("proxy-30m", (VOCABULARY,)),
    ("gpuburnout-1b", ()),
    ("tinystories-28m-modern", ()),
)
ROWS: tuple[Trial, ...] = tuple(
    (name, (*overrides, f"train.rows={rows}")) for name, overrides in GOALS[:2] for rows in ("windows", "packed")
)
"""Recipes whose steps are timed with windows, and with packed rows: the goal is 0.9 of the windows' speed."""


class Run:
    """One run of all measurements, until its time is over."""

    def __init__(self, seconds: float, out: Path):
        """Begin the run: its clock starts now."""
        self.began, self.seconds, self.out = time.perf_counter(), seconds, out / "on_gpu.jsonl"
        self.gpu, self.device = torch.cuda.is_available(), choose_device("auto")
        self.rows: list[dict[str, Any]] = []
        self.waiting: dict[Trial, subprocess.Popen[str]] = {}

    def measure(self) -> list[dict[str, Any]]:
        """Take all measurements that the time allows; return their rows."""
        try:
            self._take_trials(GOALS if self.gpu else GOALS[1:2])
            self._try("ceilings", 10, self._ceilings)
            for name, overrides in GOALS[: 2 if self.gpu else 1]:
                self._try("layers", 40, self._layers, name, overrides)
        finally:
            for process in self.waiting.values():
                with process:
                    end(process)
        self.say(what="done", left=round(self._left(), 1))
        return self.rows

    def measure_rows(self) -> list[dict[str, Any]]:
        """Compare packed rows with windows: speed, and memory."""
        self._take_trials(ROWS if self.gpu else ROWS[2:])
        steps = [row for row in self.rows if row.get("part") == "steps"]
        for windows, packed in zip(steps[::2], steps[1::2], strict=False):
            ratios = {key: packed[key] / windows[key] for key in ("tokens_per_s", "peak_gb") if windows[key]}
            self.say(what="rows", recipe=packed["recipe"], precision=packed["precision"], packed_over_windows=ratios)
        return self.rows

    def measure_build(self) -> list[dict[str, Any]]:
        """Measure builds and loaders on this machine's cores, as far as the time allows."""
        with tempfile.TemporaryDirectory() as folder:
            measure_cores(Path(folder), self._left, self.say, large=(os.cpu_count() or 1) >= 16)
        return self.rows

    def say(self, **row: Any) -> None:
        """Print a measurement, and keep it."""
        row = {"t": round(time.perf_counter() - self.began, 1), **row}
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        with self.out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _take_trials(self, trials: Sequence[Trial]) -> None:
        """Let trials take turns; each prepares itself while those before it run."""
        for trial in trials:
            self._begin(trial)
        for trial in trials:
            self._try("steps", LEAST_S, self._await, trial)

    def _left(self) -> float:
        return self.seconds - (time.perf_counter() - self.began)

    def _try(self, name: str, needs: float, take: Callable[..., None], *arguments: Any) -> None:
        """Take a measurement if there is time; one that fails costs no other."""
        if self._left() < needs:
            self.say(what=name, skipped=f"{self._left():.0f} s left, needs {needs}")
            return
        try:
            take(*arguments)
        except Exception as error:  # noqa: BLE001
            self.say(what=name, error=repr(error)[:300])

    def _time(self, call: Callable[[], Any], times: int = 20, warm_up: int = 5) -> tuple[float, float]:
        """Return milliseconds by the device's clock, and the host's until the last call returned."""
        if not self.gpu:
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1e3, 0.0
        for _ in range(warm_up):
            call()
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        began = time.perf_counter()
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        host = (time.perf_counter() - began) / times * 1e3
        torch.cuda.synchronize()
        return statistics.median(before.elapsed_time(after) for before, after in pairwise(marks)), host

    def _ceilings(self) -> None:
        if not self.gpu:
            self.say(what="ceilings", device="CPU", torch=torch.__version__)
            return
        source = torch.randn(2**30, device=self.device, dtype=torch.bfloat16)
        target = torch.empty_like(source)
        copy, _ = self._time(lambda: target.copy_(source))
        x, y = (torch.randn(8192, 8192, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        product, _ = self._time(lambda: x @ y)
        speeds = {"copy_tb_s": 2 * source.nbytes / copy / 1e9, "mm_tflops": 2 * 8192**3 / product / 1e9}
        versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        self.say(what="ceilings", device=torch.cuda.get_device_name(), **versions, **speeds)

    def _layers(self, name: str, overrides: Sequence[str]) -> None:
        """Time a micro-batch, forward and backward, of a model of four layers, compiled, and list its kernels."""
        recipe = load(name, (*overrides, "model.num_hidden_layers=4"), gpu=self.gpu)
        model = decoder.build_model(recipe.model, recipe.model.vocab_size or 0, seed=1).to(self.device)
        if self.gpu:
            model.compile()
            torch.cuda.reset_peak_memory_stats()
        shape = (recipe.train.micro_batch, recipe.train.seq_len + 1)
        ids = torch.randint(0, model.vocab_size, shape, device=self.device)

        def forward_and_backward() -> None:
            with autocast("bf16" if self.gpu else "fp32", self.device):
                loss = model(ids[:, :-1], ids[:, 1:])
            loss.backward()
            model.zero_grad(set_to_none=True)

        ms, host = self._time(forward_and_backward)
        peak = torch.cuda.max_memory_allocated() / 1e9 if self.gpu else None
        self.say(what="layers", recipe=name, ms=ms, host_ms=host, peak_gb=peak)
        if self.gpu:
            self.say(what="kernels", recipe=name, ms_of_one_step=list_kernels(forward_and_backward))

    def _begin(self, trial: Trial) -> None:
        """Start the process of a trial: it imports and writes its set, then waits for its turn."""
        if trial not in self.waiting and self._left() > LEAST_S:
            command = [sys.executable, "-m", "tests.benchmarks.on_gpu", "--trial", json.dumps(trial)]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self.waiting[trial] = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes)

    def _await(self, trial: Trial) -> None:
        """Let a trial take its turn, and pass its lines on; it is ended when it takes too long."""
        process, began = self.waiting.pop(trial), time.perf_counter()
        limit = min(self._left() - 5, MOST_S)
        gc.collect()
        torch.cuda.empty_cache()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(limit, end, [process])
        timer.start()
        with process:  # its pipes are closed at the end
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("go\n")
                process.stdin.flush()
            for line in process.stdout:
                if line.startswith("{"):
                    self.say(what="steps", recipe=trial[0], overrides=list(trial[1]), **json.loads(line))
        timer.cancel()
        if process.returncode:
            seconds = time.perf_counter() - began
            self.say(what="steps", recipe=trial[0], error=process.returncode, seconds=round(seconds))


def load(name: str, overrides: Sequence[str], *, gpu: bool) -> TrainRecipe:
    """Load a shipped recipe with changes, without a GPU a tiny form of it."""
    return load_train_recipe(Path(name), [*overrides, *(() if gpu else TINY)])


def end(process: subprocess.Popen[str]) -> None:
    """End a process and those that compile for it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def time_trial(name: str, overrides: Sequence[str]) -> None:
    """Time steps and two validations of a recipe, as `train` takes them; print a JSON line after each part."""
    gpu = torch.cuda.device_count() > 0
    recipe = load(name, overrides, gpu=gpu)
    recipe = recipe.with_values(eval=recipe.eval.with_values(sets=[], tasks=[]))
    train, marks = recipe.train, list[Any]()

    def wait() -> float:
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    def mark() -> None:
        marks.append(torch.cuda.Event(enable_timing=True) if gpu else time.perf_counter())
        if gpu:
            marks[-1].record()

    with tempfile.TemporaryDirectory() as folder:
        shards = write_made_up_set(recipe, Path(folder))
        sys.stdin.readline()
        began = time.perf_counter()
        session = open_session(recipe, shards, Path(folder) / "run", say=no_note)
        opened = wait()
        stop = 1_000 * train.global_batch
        with closing(session), open_training_windows(session.shard_set, train, stop=stop) as windows:
            take_our_steps(session, windows, 1, mark)
            first = wait()
            take_our_steps(session, windows, WARMUP, mark)
            warm = wait()
            print(json.dumps({"part": "start", "open_s": opened - began, "first_step_s": first - opened}), flush=True)
            # About eight seconds of steps.
            steps = max(5, min(50, int(8 / ((warm - first) / WARMUP)))) if gpu else 2
            if gpu:
                torch.cuda.reset_peak_memory_stats()
            marks.clear()
            mark()
            records = take_our_steps(session, windows, steps, mark)
            wait()
            spent = [(a.elapsed_time(b) / 1e3 if gpu else b - a) for a, b in pairwise(marks)]
            speed = steps * train.global_batch * train.seq_len / sum(spent)
            peak = session.peak_tokens_per_s
            row: dict[str, Any] = {
                "part": "steps",
                "device": torch.cuda.get_device_name() if gpu else "CPU",
                "precision": session.precision,
                "tokens_per_s": round(speed),
                "mfu": speed / peak if peak else None,
                "steps": steps,
                "step_ms": [1e3 * figure(spent) for figure in (min, statistics.median, max)],
                "data_wait_ms": statistics.median(record["data_wait_ms"] for record in records),
                "loss": records[-1]["loss"],
                "peak_gb": torch.cuda.max_memory_reserved() / 1e9 if gpu else None,
            }
            print(json.dumps(row), flush=True)
            # The made-up set has next to no text for validation: take the training split's.
            held: dict[str, Any] = {**session.shard_set.splits, "val": session.shard_set.splits["train"]}
            session.shard_set.__dict__["splits"] = held
            seconds: list[float] = []
            for _ in range(2):
                before = wait()
                evaluate(session.trained, 500_000 if gpu else 500, [], lambda name: contextlib.nullcontext(no_progress))
                seconds.append(wait() - before)
            print(json.dumps({"part": "validation", "first_s": seconds[0], "second_s": seconds[1]}), flush=True)


def list_kernels(call: Callable[[], Any]) -> dict[str, tuple[float, int]]:
    """Return the kernels that take the most time in a call: milliseconds, and how often each runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as taken:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    rows = sorted(taken.key_averages(), key=lambda row: -row.self_device_time_total)[:25]
    return {row.key[:90]: (round(row.self_device_time_total / 3e3, 3), row.count // 3) for row in rows}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=520)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--trial", type=json.loads)
    flags = parser.parse_args()
    if flags.trial:
        time_trial(*flags.trial)
    else:
        run = Run(flags.seconds, Path(os.environ.get("OUT", ".")))
        _ = run.measure_build() if flags.build else run.measure_rows() if flags.rows else run.measure()

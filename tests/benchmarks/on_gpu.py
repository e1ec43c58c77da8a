"""Measure the trainer on a GPU that is rented by the minute: `python -m tests.benchmarks.on_gpu [SECONDS]`.

The most valuable measurement comes first, and nothing begins that would not end in time: whole steps of the recipes
with goals and their validation, Muon, attention by the size of heads, a few layers in other forms, more recipes. With
`--build`, builds and loaders on many cores instead. Each measurement is one JSON line, printed at once and added to
`on_gpu.jsonl` in the folder OUT of the environment. Without a GPU all of it is rehearsed on tiny sizes. No network.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import inspect
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tests.benchmarks.harness import ROOT
from tests.benchmarks.many_cores import measure_cores
from trainer.commands.timed_steps import WARMUP, take_our_steps, write_made_up_set
from trainer.device import autocast, choose_device, score_eagerly
from trainer.evaluation.validation import evaluate
from trainer.model import attention, decoder
from trainer.optim import build_optimizers
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
MORE: tuple[Trial, ...] = (
    ("gpuburnout-1b", ("train.micro_batch=8",)),
    ("tinystories-91m", ("model.num_attention_heads=6", "model.num_key_value_heads=6")),
)
VARIANTS = ("", "cut_off", "fused", "regional", "")
"""Of a few layers: as they are, first and last; in an earlier form; and in forms to try."""


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
        gpu = self.gpu
        try:
            self._time_recipes(GOALS if gpu else GOALS[1:2])
            self._try("ceilings", 10, self._ceilings)
            for name in ("proxy-30m", "tinystories-28m-modern", "gpuburnout-1b-modern")[: 3 if gpu else 1]:
                self._try("muon", 20, self._muon, name)
            sizes = ((512, 64, 768), (1024, 32, 384), (2048, 8, 2048))
            for length, batch, width in sizes if gpu else ((64, 1, 256),):
                self._try("attention", 8, self._heads, length, batch, width)
            for name in ("tinystories-91m", "proxy-30m")[: 2 if gpu else 1]:
                for turn, variant in enumerate(VARIANTS):
                    self._try("layers", 40, self._layers, name, variant, turn == 0)
            self._try("validation", 60, self._validation, "proxy-30m")
            self._time_recipes(MORE if gpu else ())
        finally:
            for process in self.waiting.values():
                with process:
                    end(process)
        self.say(what="done", left=round(self._left(), 1))
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

    def _load(self, name: str, *overrides: str) -> TrainRecipe:
        vocabulary = (VOCABULARY,) if name == "proxy-30m" else ()
        return load(name, (*vocabulary, *overrides), gpu=self.gpu)

    @property
    def _precision(self) -> Any:
        return "bf16" if self.gpu else "fp32"

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

    def _muon(self, name: str) -> None:
        """Time a step of Muon."""
        recipe = self._load(name)
        with torch.device(self.device):
            model = decoder.LanguageModel(recipe.model, recipe.model.vocab_size or 0)
        torch.manual_seed(0)
        for weight in model.parameters():
            weight.data.normal_(std=0.02)
            weight.grad = torch.randn_like(weight) * 1e-3
        optimizer = build_optimizers(model, recipe.optimizer, self._precision)[0]
        device_ms, host_ms = self._time(optimizer.step, times=10, warm_up=2)
        matrices = len(optimizer.param_groups[0]["params"])
        self.say(what="muon", recipe=name, device_ms=device_ms, host_ms=host_ms, matrices=matrices)

    def _heads(self, length: int, batch: int, width: int) -> None:
        for size in (64, 128):
            shape = (batch, width // size, length, size)
            own = {"device": self.device, "dtype": torch.bfloat16}
            query, key, value = (torch.randn(shape, requires_grad=True, **own) for _ in range(3))
            gradient = torch.randn(shape, **own)

            def forward_and_backward(parts: Any = (query, key, value), gradient: Any = gradient) -> None:
                F.scaled_dot_product_attention(*parts, is_causal=True).backward(gradient)
                for part in parts:
                    part.grad = None

            sizes = {"length": length, "batch": batch, "width": width, "head_dim": size}
            self.say(what="attention", **sizes, ms=self._time(forward_and_backward)[0])

    def _layers(self, name: str, variant: str, profiled: bool) -> None:
        """Time a micro-batch, forward and backward, of a model of four layers, compiled."""
        recipe = self._load(name, "model.num_hidden_layers=4")
        torch._dynamo.reset()
        backend = "inductor" if self.gpu else "eager"
        with changed(variant):
            model = decoder.build_model(recipe.model, recipe.model.vocab_size or 0, seed=1).to(self.device)
            forward: Callable[..., torch.Tensor] = model
            if variant == "regional":
                forward = compile_regions(model, backend)
            else:
                model.compile(backend=backend)
            torch.manual_seed(0)
            shape = (recipe.train.micro_batch, recipe.train.seq_len + 1)
            ids = torch.randint(0, model.vocab_size, shape, device=self.device)

            def forward_and_backward() -> torch.Tensor:
                with autocast(self._precision, self.device):
                    loss = forward(ids[:, :-1], ids[:, 1:])
                loss.backward()
                model.zero_grad(set_to_none=True)
                return loss

            if self.gpu:
                torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            loss = forward_and_backward().item()
            first = time.perf_counter() - began
            ms, host = self._time(forward_and_backward)
            row = {"recipe": name, "variant": variant or "plain"}
            peak = torch.cuda.max_memory_allocated() / 1e9 if self.gpu else None
            self.say(what="layers", **row, ms=ms, host_ms=host, first_s=first, loss=loss, peak_gb=peak)
            if self.gpu and profiled:
                self.say(what="kernels", **row, ms_of_one_step=list_kernels(forward_and_backward))

    def _validation(self, name: str) -> None:
        """Time the losses of 16 micro-batches as they are taken, and in a compiled model: the first and all again."""
        recipe = self._load(name)
        torch._dynamo.reset()
        model = decoder.build_model(recipe.model, recipe.model.vocab_size or 0, seed=1).to(self.device).eval()
        if self.gpu:
            model.compile()
        rows = recipe.train.micro_batch
        ids = torch.randint(0, model.vocab_size, (16 * rows, recipe.train.seq_len + 1), device=self.device)
        for form, context, size in (("eager", score_eagerly, max(1, rows // 4)), ("compiled", autocast, rows)):
            seconds: list[float] = []
            for _ in range(2):
                began = time.perf_counter()
                for part in ids.split(size):
                    with torch.no_grad(), context(self._precision, self.device):
                        losses = model(part[:, :-1], part[:, 1:], reduction="none").double().cpu()
                seconds.append(time.perf_counter() - began)
            row = {"recipe": name, "form": form, "seconds": seconds, "tokens": ids.numel()}
            self.say(what="validation", **row, last=losses[-1, -1].item())

    def _time_recipes(self, trials: Sequence[Trial]) -> None:
        """Time whole steps of recipes in processes of their own, which all import while the first compiles."""
        for trial in trials:
            self._begin(trial)
        for trial in trials:
            self._try("steps", LEAST_S, self._await, trial)

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
    recipe = recipe.model_copy(update={"eval": recipe.eval.model_copy(update={"sets": [], "tasks": []})})
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
        session = open_session(recipe, shards, Path(folder) / "run", say=lambda line: None)
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
                evaluate(session.evaluated, session.shard_set, 500_000 if gpu else 500)
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


# Variants: forms to try, and an earlier one.


def fused_attention(self: Any, x: torch.Tensor, rotary: Any, mask: Any, cache: None = None) -> torch.Tensor:
    """Compute queries, keys and values as one product."""
    batch, length, width = x.shape
    projections = (self.q_proj, self.k_proj, self.v_proj)
    bias = None if self.q_proj.bias is None else torch.cat([one.bias for one in projections])
    product = F.linear(x, torch.cat([one.weight for one in projections]), bias)
    parts = product.split([one.out_features for one in projections], dim=-1)
    query, key, value = (part.view(batch, length, -1, self.head_dim) for part in parts)
    if self.q_norm is not None:
        query, key = self.q_norm(query), self.k_norm(key)
    if rotary is not None:
        query, key = attention.rotate(query, *rotary), attention.rotate(key, *rotary)
    attended = attention.attend(*(part.transpose(1, 2) for part in (query, key, value)), mask)
    return self.o_proj(attended.transpose(1, 2).reshape(batch, length, width))


def fused_feed_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute gate and up as one product."""
    if self.gate_proj is None:
        return PLAIN[decoder.FeedForward, "forward"](self, x)
    gate, up = F.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight])).chunk(2, -1)
    return self.down_proj(F.silu(gate) * up)


def compile_regions(model: decoder.LanguageModel, backend: str) -> Callable[..., torch.Tensor]:
    """Compile each layer, and the head with the loss, each by itself; return the forward pass."""
    for layer in model.model.layers:
        layer.compile(backend=backend)
    head = model.model.embed_tokens if model.lm_head is None else model.lm_head

    @torch.compile(backend=backend)
    def measure(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = F.linear(model.model.norm(x), head.weight)[..., : model.vocab_size].float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def forward(ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = model.model.embed_tokens(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)
        rotary = attention.rotary_tables(positions, model.config.head_dim, model.config.rope_theta)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        for layer in model.model.layers:
            x = layer(x, rotary, None, None)
        return measure(x, targets)

    return forward


def _cut_padded_logits() -> Callable[..., Any]:
    """Return the model's forward pass with the padded logits cut off, not overwritten in place."""
    overwritten = "logits.detach()[..., self.vocab_size :] = -torch.inf"
    source = inspect.getsource(PLAIN[decoder.LanguageModel, "forward"])
    if overwritten not in source:
        raise RuntimeError("the loss has changed: its logits are overwritten elsewhere")
    space = vars(decoder).copy()
    exec(textwrap.dedent(source.replace(overwritten, "logits = logits[..., : self.vocab_size]")), space)
    return space["forward"]


PLAIN: dict[tuple[Any, str], Any] = {
    (where, name): getattr(where, name)
    for where, name in (
        (attention.Attention, "forward"),
        (decoder.FeedForward, "forward"),
        (decoder.LanguageModel, "forward"),
    )
}
"""What the variants replace."""


@contextlib.contextmanager
def changed(variant: str) -> Iterator[None]:
    """Use the kernels of a variant in the body; the others change how a model is compiled."""
    changes: dict[tuple[Any, str], Any] = {}
    if variant == "fused":
        changes[attention.Attention, "forward"] = fused_attention
        changes[decoder.FeedForward, "forward"] = fused_feed_forward
    elif variant == "cut_off":
        changes[decoder.LanguageModel, "forward"] = _cut_padded_logits()
    for (where, name), own in changes.items():
        setattr(where, name, own)
    yield
    for (where, name), own in PLAIN.items():
        setattr(where, name, own)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=520)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--trial", type=json.loads)
    flags = parser.parse_args()
    if flags.trial:
        time_trial(*flags.trial)
    else:
        run = Run(flags.seconds, Path(os.environ.get("OUT", ".")))
        _ = run.measure_build() if flags.build else run.measure()

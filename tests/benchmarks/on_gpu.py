"""Measure the trainer on a GPU that is rented by the minute: `python -m tests.benchmarks.on_gpu SECONDS`.

The most valuable measurement comes first, and nothing begins that would not end in time: what the card reaches, Muon,
attention by the size of heads, a few layers with a kernel changed, then whole steps of recipes. Each measurement is one
JSON line, printed at once and added to `on_gpu.jsonl` in the folder OUT of the environment. The whole run takes 8
minutes on an H200. Without a GPU it rehearses all of it on tiny models, in half a minute. No network, no data.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from trainer.commands.timed_steps import time_steps, write_made_up_set
from trainer.device import autocast, choose_device
from trainer.model import attention, decoder
from trainer.optim import Muon, _adjust_lr, build_optimizers
from trainer.recipe import TrainRecipe, load_train_recipe

TINY = (
    *("model.hidden_size=64", "model.intermediate_size=64", "model.num_attention_heads=2", "model.vocab_size=256"),
    *("model.num_key_value_heads=2", "model.num_hidden_layers=2", "model.max_position_embeddings=32"),
    *("train.seq_len=32", "train.global_batch=2", "train.micro_batch=2", "train.compile=false", "train.smoke_steps=0"),
)
"""What makes a recipe small enough for a rehearsal."""
STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tinystories-91m", ()),
    ("tinystories-28m-modern", ()),
    ("proxy-30m", ("model.vocab_size=32_005",)),
    ("gpuburnout-1b", ()),
    ("gpuburnout-1b", ("train.micro_batch=16",)),
    ("tinystories-91m", ("model.num_attention_heads=6", "model.num_key_value_heads=6")),
)
"""The recipes whose whole steps are timed, with changes to try."""


class Run:
    """One run of all measurements, until its time is over."""

    def __init__(self, seconds: float, out: Path):
        """Begin the run: its clock starts now."""
        self.began, self.seconds, self.out = time.perf_counter(), seconds, out / "on_gpu.jsonl"
        self.gpu, self.device = torch.cuda.is_available(), choose_device("auto")
        self.rows: list[dict[str, Any]] = []

    def measure(self) -> list[dict[str, Any]]:
        """Take all measurements that the time allows; return their rows."""
        self._try("ceilings", 10, self._ceilings)
        for name in ("tinystories-28m-modern", "proxy-30m", "gpuburnout-1b-modern")[: 3 if self.gpu else 1]:
            self._try("muon", 20, self._muon, name)
        for length, batch, width in ((512, 64, 768), (1024, 32, 384), (2048, 8, 2048)) if self.gpu else ((64, 1, 256),):
            self._try("attention", 8, self._heads, length, batch, width)
        for name in ("tinystories-91m", "proxy-30m")[: 2 if self.gpu else 1]:
            # The first once more at the end: how much a repetition differs.
            for turn, variant in enumerate(((), ("slice",), ("halves",), ("fused",), ())):
                self._try("layers", 30, self._layers, name, variant, turn == 0)
        self._try("layers", 30, self._layers, "tinystories-91m", (), False, True)
        for name, overrides in STEPS if self.gpu else STEPS[1:2]:
            self._try("steps", 75 if self.gpu else 15, self._steps, name, overrides)
        self._say(what="done", left=self._left())
        return self.rows

    def _say(self, **row: Any) -> None:
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
            self._say(what=name, skipped=f"{self._left():.0f} s left, needs {needs}")
            return
        try:
            take(*arguments)
        except Exception as error:  # noqa: BLE001
            self._say(what=name, error=repr(error)[:300])

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
        return load_train_recipe(Path(name), [*overrides, *(() if self.gpu else TINY)])

    @property
    def _precision(self) -> Any:
        return "bf16" if self.gpu else "fp32"

    def _ceilings(self) -> None:
        if not self.gpu:
            self._say(what="ceilings", device="CPU", torch=torch.__version__)
            return
        source = torch.randn(2**30, device=self.device, dtype=torch.bfloat16)
        target = torch.empty_like(source)
        copy, _ = self._time(lambda: target.copy_(source))
        x, y = (torch.randn(8192, 8192, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        product, _ = self._time(lambda: x @ y)
        speeds = {"copy_tb_s": 2 * source.nbytes / copy / 1e9, "mm_tflops": 2 * 8192**3 / product / 1e9}
        self._say(what="ceilings", device=torch.cuda.get_device_name(), torch=torch.__version__, **speeds)

    def _muon(self, name: str) -> None:
        """Time Muon as it is and by groups of equal shape; compare the weights after one step."""
        recipe = self._load(name)
        after: dict[type, list[torch.Tensor]] = {}
        for kind in (Muon, BatchedMuon, Muon):
            with torch.device(self.device):
                model = decoder.LanguageModel(recipe.model, recipe.model.vocab_size or 32_005)
            torch.manual_seed(0)
            for weight in model.parameters():
                weight.data.normal_(std=0.02)
                weight.grad = torch.randn_like(weight) * 1e-3
            optimizer = build_optimizers(model, recipe.optimizer, self._precision)[0]
            optimizer.__class__ = kind
            optimizer.step()
            matrices = optimizer.param_groups[0]["params"]
            after.setdefault(kind, [weight.detach().clone() for weight in matrices])
            device_ms, host_ms = self._time(optimizer.step, times=10, warm_up=2)
            times = {"device_ms": device_ms, "host_ms": host_ms}
            self._say(what="muon", recipe=name, kind=kind.__name__, **times, matrices=len(matrices))
        pairs = zip(after[BatchedMuon], after[Muon], strict=True)
        self._say(what="muon equal", recipe=name, worst=max(((x - y).norm() / y.norm()).item() for x, y in pairs))

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
            self._say(what="attention", **sizes, ms=self._time(forward_and_backward)[0])

    def _layers(self, name: str, variant: Sequence[str], profiled: bool, regional: bool = False) -> None:
        """Time a micro-batch, forward and backward, of a model of four layers, compiled whole or layer by layer."""
        recipe = self._load(name, "model.num_hidden_layers=4")
        torch._dynamo.reset()
        with changed(variant):
            model = decoder.build_model(recipe.model, recipe.model.vocab_size or 32_005, seed=1).to(self.device)
            for part in model.model.layers if regional else [model]:
                part.compile(backend="inductor" if self.gpu else "eager")
            torch.manual_seed(0)
            shape = (recipe.train.micro_batch, recipe.train.seq_len + 1)
            ids = torch.randint(0, model.vocab_size, shape, device=self.device)

            def forward_and_backward() -> torch.Tensor:
                with autocast(self._precision, self.device):
                    loss = model(ids[:, :-1], ids[:, 1:])
                loss.backward()
                model.zero_grad(set_to_none=True)
                return loss

            began = time.perf_counter()
            loss = forward_and_backward().item()
            first = time.perf_counter() - began
            ms, host = self._time(forward_and_backward)
            row = {"recipe": name, "variant": "+".join(variant) or "plain", "regional": regional}
            peak = torch.cuda.max_memory_allocated() / 1e9 if self.gpu else None
            self._say(what="layers", **row, ms=ms, host_ms=host, first_s=first, loss=loss, peak_gb=peak)
            if self.gpu:
                torch.cuda.reset_peak_memory_stats()
            if self.gpu and profiled:
                self._say(what="kernels", **row, ms_of_one_step=_list_kernels(forward_and_backward))

    def _steps(self, name: str, overrides: Sequence[str]) -> None:
        """Time whole steps in a process of their own, as `tokenmill fit --measure` does."""
        began, recipe = time.perf_counter(), self._load(name, *overrides)
        with tempfile.TemporaryDirectory() as folder:
            shards = write_made_up_set(recipe, Path(folder))
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                row = pool.submit(time_steps, recipe, shards, 20 if self.gpu else 1).result()
        seconds = time.perf_counter() - began
        self._say(what="steps", recipe=name, overrides=list(overrides), **row, seconds=seconds)


def _list_kernels(call: Callable[[], Any]) -> dict[str, tuple[float, int]]:
    """Return the kernels that take the most time in a call: milliseconds, and how often each runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as taken:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    rows = sorted(taken.key_averages(), key=lambda row: -row.self_device_time_total)[:25]
    return {row.key[:90]: (round(row.self_device_time_total / 3e3, 3), row.count // 3) for row in rows}


# Variants: the same functions with other kernels.


class BatchedMuon(Muon):
    """Muon that stacks the matrices of one shape: a fifteenth of the kernels."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Any]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape[weight.shape].append(weight)
            for shape, alike in by_shape.items():
                many = max(1, 2**26 // shape.numel())
                for first in range(0, len(alike), many):
                    self._update(alike[first : first + many], group)

    def _update(self, weights: list[Any], group: dict[str, Any]) -> None:
        gradients = [weight.grad for weight in weights]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum_buffer"] for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        update = torch.stack(torch._foreach_lerp(gradients, momenta, group["momentum"]))
        update = _orthogonalise_all(update, group, self._dtype).to(weights[0].dtype)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], weights[0].shape)
        torch._foreach_add_(weights, update.unbind(), alpha=-rate)


def _orthogonalise_all(update: torch.Tensor, group: dict[str, Any], dtype: torch.dtype) -> torch.Tensor:
    a, b, c = group["ns_coefficients"]
    tall = update.shape[1] > update.shape[2]
    x = (update.mT if tall else update).to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def rotate_by_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads without joining the rotated halves twice."""
    half = x.shape[-1] // 2
    first, second, cos, sin = x[..., :half], x[..., half:], cos[..., :half], sin[..., :half]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def fused_attention(self: Any, x: torch.Tensor, rotary: Any, mask: Any, cache: None = None) -> torch.Tensor:
    """Compute queries, keys and values as one product."""
    batch, length, width = x.shape
    projections = (self.q_proj, self.k_proj, self.v_proj)
    bias = None if self.q_proj.bias is None else torch.cat([one.bias for one in projections])
    product = F.linear(x, torch.cat([one.weight for one in projections]), bias)
    parts = product.split([one.out_features for one in projections], dim=-1)
    query, key, value = (part.view(batch, length, -1, self.head_dim).transpose(1, 2) for part in parts)
    if self.q_norm is not None:
        query, key = self.q_norm(query), self.k_norm(key)
    if rotary is not None:
        query, key = attention.rotate(query, *rotary), attention.rotate(key, *rotary)
    attended = attention.attend(query, key, value, mask)
    return self.o_proj(attended.transpose(1, 2).reshape(batch, length, width))


def fused_feed_forward(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute gate and up as one product."""
    if self.gate_proj is None:
        return PLAIN[decoder.FeedForward, "forward"](self, x)
    gate, up = F.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight])).chunk(2, -1)
    return self.down_proj(F.silu(gate) * up)


def _slice_logits() -> Callable[..., Any]:
    """Return the model's forward pass with the padded logits cut off, not overwritten in place."""
    in_place = "        logits.detach()[..., self.vocab_size :] = -torch.inf\n        logits = logits.float()\n"
    source = inspect.getsource(PLAIN[decoder.LanguageModel, "forward"])
    if in_place not in source:
        raise RuntimeError("the loss has changed: no minus infinity in place")
    changed = source.replace(in_place, "        logits = logits[..., : self.vocab_size].float()\n")
    space = vars(decoder).copy()
    exec(textwrap.dedent(changed), space)
    return space["forward"]


PLAIN: dict[tuple[Any, str], Any] = {
    (where, name): getattr(where, name)
    for where, name in (
        (attention.Attention, "forward"),
        (decoder.FeedForward, "forward"),
        (attention, "rotate"),
        (decoder.LanguageModel, "forward"),
    )
}
"""What the variants replace."""


@contextlib.contextmanager
def changed(variant: Sequence[str]) -> Iterator[None]:
    """Use the kernels of a variant in the body: `slice`, `halves`, `fused`."""
    changes: dict[tuple[Any, str], Any] = {}
    if "fused" in variant:
        changes[attention.Attention, "forward"] = fused_attention
        changes[decoder.FeedForward, "forward"] = fused_feed_forward
    if "halves" in variant:
        changes[attention, "rotate"] = rotate_by_halves
    if "slice" in variant:
        changes[decoder.LanguageModel, "forward"] = _slice_logits()
    for (where, name), own in (PLAIN | changes).items():
        setattr(where, name, own)
    yield
    for (where, name), own in PLAIN.items():
        setattr(where, name, own)


if __name__ == "__main__":
    Run(float(sys.argv[1]), Path(os.environ.get("OUT", "."))).measure()

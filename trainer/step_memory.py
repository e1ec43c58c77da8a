"""The memory of a training step's activations, counted without a GPU and without the memory.

A forward and backward pass runs on tensors that have shapes but no storage, and every tensor's birth and death is
counted. With `train.compile` (and nothing recomputed) what the compiler's own partitioner keeps for the backward pass
is counted instead. torch's own MemTracker finds the same bytes, three times slower.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainer.config import TrainRecipe
from trainer.model import LanguageModel


def measure_step(recipe: TrainRecipe, layers: int, micro_batch: int, *, choice: str) -> int:
    """Return the bytes of a micro-batch at its peak, without weights, gradients and optimizer, at some depth."""
    config = recipe.model.model_copy(update={"num_hidden_layers": layers})
    vocab_size, seq_len = config.vocab_size or 0, recipe.train.seq_len
    with FakeTensorMode():
        model = LanguageModel(config, vocab_size)
        ids = torch.zeros((micro_batch, seq_len), dtype=torch.int64)

        def forward(weights: dict[str, Any], ids: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=recipe.train.precision != "fp32"):
                return torch.func.functional_call(model, weights, (ids, ids))

        weights = dict(model.named_parameters())
        if recipe.train.compile and choice == "none":
            # At the backward pass's start the logits' gradient stands beside what is kept, in bf16.
            return _count_kept(forward, weights, ids) + 2 * micro_batch * seq_len * vocab_size
        model.activation_checkpointing = choice  # type: ignore[assignment]
        for weight in weights.values():
            weight.grad = torch.zeros_like(weight)
        with _Meter([*weights.values(), *(weight.grad for weight in weights.values())]) as meter:
            forward(weights, ids).backward()
        return meter.peak


def _count_kept(forward: Callable[..., Any], weights: dict[str, torch.nn.Parameter], ids: torch.Tensor) -> int:
    """Return the bytes that a compiled forward pass keeps for the backward pass, weights aside."""
    kept: dict[int, int] = {}

    def look(gm: Any, example_inputs: Any) -> Any:
        for node in gm.graph.output_node().args[0][1:]:
            value = node.meta.get("val") if isinstance(node, torch.fx.Node) and node.op != "placeholder" else None
            if isinstance(value, torch.Tensor):
                kept[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        return make_boxed_func(gm.forward)

    aot_function(
        forward,
        fw_compiler=look,
        bw_compiler=lambda gm, example_inputs: make_boxed_func(gm.forward),
        partition_fn=functools.partial(min_cut_rematerialization_partition, compiler="inductor"),
        decompositions=select_decomp_table(),
    )(weights, ids)
    return sum(kept.values())


class _Meter(TorchDispatchMode):
    """Counts the bytes of living tensors, but for `known` ones, and their peak."""

    def __init__(self, known: list[Any]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def forget(self, key: int) -> None:
        self.live -= self.sizes.pop(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.forget, storage._cdata)
                self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        return out

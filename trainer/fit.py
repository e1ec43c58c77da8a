"""Which micro-batches fit in a GPU's memory, before one is rented. Runs the recipe's own model without memory or GPU.

The model's forward and backward pass run at two depths and two micro-batches on tensors that have shapes but no
storage, and every tensor's birth and death is counted; memory is linear in layers and in micro-batch, so four runs give
all. With `train.compile` (and nothing recomputed) what the compiler's own partitioner keeps for the backward pass is
counted instead. One GPU is assumed, bf16 unless the recipe says fp32. Takes some ten seconds.

Not counted: what kernels allocate inside, buffers of several ranks, and the masks of `document_mask`. The margin for
these and for fragmentation is 5 % of the card beside 0.75 GB for the CUDA context and cuBLAS: a rule of thumb, held
against no card yet. Fragmentation grows with recomputation; GMLake (arXiv:2401.08156) measured 15 % on average in
fine-tuning that also offloads. `PYTORCH_ALLOC_CONF=expandable_segments:True` lowers it.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import InputError

if TYPE_CHECKING:
    from trainer.config import TrainRecipe

CONTEXT_BYTES, MARGIN = 750_000_000, 0.05
CHOICES = ("none", "selective", "full")
DEPTHS, BATCHES = (2, 3), (16, 32)
"""Where the plane is measured. With fewer sequences, temporary gradients of weights can outweigh what is linear."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="a train recipe (TOML) with model.vocab_size")
    parser.add_argument("--gpu-memory", required=True, metavar="SIZE", help="of the card: 80GB, 24GB, 141GB, 79.1GiB")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help="as in train")


def run(options: argparse.Namespace) -> int:
    """Print what fits; exit code 1 when nothing does."""
    from trainer.recipe import load_recipe

    memory, recipe = parse_bytes(options.gpu_memory), load_recipe(options.recipe, options.overrides)
    if recipe.model.vocab_size is None:
        raise InputError(f"{options.recipe}: no model.vocab_size. Add --set model.vocab_size=N, of your shard set.")
    result = estimate(recipe, memory, measure(recipe))
    best = result["recommended"]
    if options.json:
        print(json.dumps(result, indent=2))
        return 0 if best else 1
    from shards.display import plain_table, stdout_console

    console, gb = stdout_console(), "{:,.2f}".format
    static = ", ".join(f"{key} {result[key] / 1e9:.2f}" for key in ("weights", "gradients", "optimizer", "context"))
    console.print(
        f"{recipe.name}: {result['parameters']:,} parameters; GB of {static}; usable {gb(result['usable'] / 1e9)}"
    )
    table = plain_table("micro-batch", "checkpointing", "activations GB", "logits GB", "in all GB", "fits")
    for row in result["estimates"]:
        figures = [gb(row[key] / 1e9) for key in ("activations", "logits", "total")]
        table.add_row(
            str(row["micro_batch"]), row["activation_checkpointing"], *figures, "yes" if row["fits"] else "no"
        )
    console.print(table)
    console.print(
        f"train.micro_batch = {best['micro_batch']}, "
        f'train.activation_checkpointing = "{best["activation_checkpointing"]}"'
        if best
        else "nothing fits: lower seq_len or the model's size, or choose a larger card"
    )
    return 0 if best else 1


def parse_bytes(text: str) -> int:
    """Parse `80GB` (powers of ten) or `80GiB`; raises InputError when it is not that."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(G|M)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise InputError(f"--gpu-memory {text}: expected a size such as 80GB or 79.1GiB")
    power = {"M": 2, "G": 3}[match[2].upper()]
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


Points = dict[tuple[str, int, int], int]


def measure(recipe: TrainRecipe) -> Points:
    """Measure a step at the four points of each choice: (choice, layers, micro-batch) to bytes."""
    return {at: measure_step(recipe, *at[1:], choice=at[0]) for at in product(CHOICES, DEPTHS, BATCHES)}


def estimate(recipe: TrainRecipe, memory: int, points: Points) -> dict[str, Any]:
    """Return all parts in bytes, an estimate for each micro-batch and choice, and the largest that fits.

    `activations` are the layers', `logits` everything of a step beside them: logits, their gradient, the embeddings.
    Recomputation is recommended only where nothing fits without it: it costs a third of the speed.
    """
    from trainer.model import count_parameters

    config, train = recipe.model, recipe.train
    vocab_size = config.vocab_size or 0

    def count(layers: int) -> int:
        return count_parameters(config.model_copy(update={"num_hidden_layers": layers}), vocab_size)

    parameters, matrices = count(config.num_hidden_layers), 0
    if recipe.optimizer.kind == "muon":  # one momentum instead of AdamW's two, for the layers' matrices
        layer = count(2) - count(1)
        vectors = {"llama": 2 * config.hidden_size, "gpt2": 9 * config.hidden_size + config.intermediate_size}
        matrices = config.num_hidden_layers * (layer - vectors[config.kind])
    result: dict[str, Any] = {"gpu_memory": memory, "usable": int(memory * (1 - MARGIN)), "parameters": parameters}
    result |= {"weights": 4 * parameters, "gradients": 4 * parameters}
    result |= {"optimizer": 8 * parameters - 4 * matrices, "context": CONTEXT_BYTES, "estimates": []}
    static = sum(result[key] for key in ("weights", "gradients", "optimizer", "context"))
    sizes = [size for size in range(1, train.global_batch + 1) if train.global_batch % size == 0]
    sizes = [size for size in sizes if size & (size - 1) == 0 or size == train.micro_batch]
    fitting: list[dict[str, Any]] = []
    for choice in CHOICES:
        for size in sizes:
            # The plane through the four points, at the recipe's depth and this micro-batch.
            low, high = (
                less + (more - less) * (size - BATCHES[0]) / (BATCHES[1] - BATCHES[0])
                for less, more in ([points[choice, depth, batch] for batch in BATCHES] for depth in DEPTHS)
            )
            activations = (high - low) * config.num_hidden_layers
            total = int(static + low + (high - low) * (config.num_hidden_layers - DEPTHS[0]))
            row = {"micro_batch": size, "activation_checkpointing": choice, "activations": int(activations)}
            row |= {"logits": int(total - static - activations), "total": total, "fits": total <= result["usable"]}
            result["estimates"].append(row)
            if not row["fits"]:
                break
            fitting.append(row)
    best = [
        row for row in fitting if fitting and row["activation_checkpointing"] == fitting[0]["activation_checkpointing"]
    ]
    return result | {"recommended": best[-1] if best else None}


def measure_step(recipe: TrainRecipe, layers: int, micro_batch: int, *, choice: str) -> int:
    """Return the bytes of a micro-batch at its peak, without weights, gradients and optimizer, at some depth."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from trainer.model import LanguageModel

    config = recipe.model.model_copy(update={"num_hidden_layers": layers})
    vocab_size, seq_len = config.vocab_size or 0, recipe.train.seq_len
    with FakeTensorMode():
        model = LanguageModel(config, vocab_size)
        ids = torch.zeros((micro_batch, seq_len), dtype=torch.int64)

        def forward(weights: Any, ids: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=recipe.train.precision != "fp32"):
                return torch.func.functional_call(model, weights, (ids, ids))

        weights = dict(model.named_parameters())
        if recipe.train.compile and choice == "none":
            return _count_compiled(forward, weights, ids) + 2 * micro_batch * seq_len * vocab_size
        model.activation_checkpointing = choice  # type: ignore[assignment]
        for parameter in weights.values():
            parameter.grad = torch.zeros_like(parameter)
        meter = _meter([*weights.values(), *(parameter.grad for parameter in weights.values())])
        with meter:
            forward(weights, ids).backward()
        return meter.peak


def _count_compiled(forward: Any, weights: dict[str, Any], ids: Any) -> int:
    """Return the bytes that a compiled forward pass keeps for the backward pass; see `measure_step`.

    At its start the logits' gradient stands beside them, in bf16, which the caller adds.
    """
    import torch
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.aot_autograd import aot_function
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

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


def _meter(known: list[Any]) -> Any:
    """Return a context that counts the bytes of living tensors, but for known ones, and their peak."""
    import weakref

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Meter(TorchDispatchMode):
        def __init__(self) -> None:
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

    return Meter()

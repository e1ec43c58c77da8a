"""Which micro-batches fit in a GPU's memory, before one is rented. Runs the recipe's own model without memory or GPU.

A step runs on tensors that have shapes but no storage, at two depths and two micro-batches; its memory is linear in
layers and in micro-batch, so four runs give all. One GPU is assumed, bf16 unless the recipe says fp32. Takes some
fifteen seconds.

What is recomputed is counted as without the compiler, with which it needs less.

Not counted: what kernels allocate inside, buffers of several ranks, and the masks of `document_mask`. The margin for
these and for fragmentation is 5 % of the card beside 0.75 GB for the CUDA context and cuBLAS: a rule of thumb, held
against no card yet. Fragmentation grows with recomputation; GMLake (arXiv:2401.08156) measured 15 % on average in
fine-tuning that also offloads. `PYTORCH_ALLOC_CONF=expandable_segments:True` lowers it.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from shards.errors import InputError
from shards.terminal.arguments import add_recipe, print_json

if TYPE_CHECKING:
    from trainer.config import TrainRecipe

CONTEXT_BYTES, MARGIN = 750_000_000, 0.05
CHOICES = ("none", "selective", "full")
DEPTHS, BATCHES = (2, 3), (16, 32)
"""Where a step is measured. With fewer sequences, temporary gradients of weights can outweigh what is linear."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    add_recipe(parser, "a train recipe (TOML) with model.vocab_size", "--set model.vocab_size=32_000")
    parser.add_argument(
        "--gpu-memory", required=True, metavar="SIZE", help="memory of the GPU: 80GB, 24GB, 141GB, 79.1GiB"
    )


def run(options: argparse.Namespace) -> int:
    """Print what fits; exit code 1 when nothing does."""
    from shards.terminal.display import print_rows, print_summary
    from trainer.recipe import load_recipe

    memory, recipe = parse_bytes(options.gpu_memory), load_recipe(options.recipe, options.overrides)
    if recipe.model.vocab_size is None:
        raise InputError(f"{options.recipe}: no model.vocab_size. Add --set model.vocab_size=N, of your shard set.")
    result = estimate(recipe, memory, measure(recipe))
    advice = "nothing fits: lower seq_len or the model's size, or choose a larger card"
    if best := result["recommended"]:
        chosen = f'train.activation_checkpointing = "{best["activation_checkpointing"]}"'
        advice = f"train.micro_batch = {best['micro_batch']}, {chosen}"
    if options.json:
        print_json(result)
    else:
        static = {key: result[key] / 1e9 for key in ("weights", "gradients", "optimizer", "context", "usable")}
        print_summary(f"{recipe.name}: {result['parameters']:,} parameters; in GB:", static)
        sizes = ("activations", "logits", "total")
        print_rows([row | {key: row[key] / 1e9 for key in sizes} for row in result["estimates"]])
        if recipe.train.compile:
            print("selective and full are counted without the compiler, with which they need less")
        print(advice)
    return 0 if best else 1


def parse_bytes(text: str) -> int:
    """Parse `80GB` (powers of ten) or `80GiB`; raises InputError when it is not that, or less than a megabyte."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    whole = re.fullmatch(r"\s*[\d.]+\s*[a-zA-Z]+\s*", text)  # pydantic passes over what stands behind a size
    with contextlib.suppress(ValidationError):
        if whole and (size := TypeAdapter(ByteSize).validate_python(text)) >= 1_000_000:
            return size
    raise InputError(f"--gpu-memory {text}: expected a size such as 80GB or 79.1GiB")


Points = dict[str, list[float]]
"""Bytes that a step takes, by choice: for each layer of each sequence, for each layer, for each sequence, and once."""


def measure(recipe: TrainRecipe, choices: Sequence[str] = CHOICES) -> Points:
    """Measure a step under some choices of recomputation."""
    import numpy as np

    points = list(product(DEPTHS, BATCHES))
    terms = [[layers * batch, layers, batch, 1] for layers, batch in points]
    taken = {choice: [measure_step(recipe, *point, choice=choice) for point in points] for choice in choices}
    return {choice: np.linalg.solve(terms, sizes).tolist() for choice, sizes in taken.items()}


def measure_step(recipe: TrainRecipe, layers: int, micro_batch: int, *, choice: str) -> int:
    """Return the bytes of a micro-batch at its peak, without weights, gradients and optimizer, at some depth.

    torch's own `MemTracker` counts it; with `train.compile`, where nothing is recomputed, it is what the compiler's
    partitioner keeps for the backward pass. torch offers neither in public: another version may have moved them.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from trainer.model import LanguageModel

    config, train = recipe.model.model_copy(update={"num_hidden_layers": layers}), recipe.train
    bf16 = torch.autocast("cpu", torch.bfloat16, enabled=train.precision != "fp32")
    with FakeTensorMode():
        model = LanguageModel(config, config.vocab_size or 0)
        weights = sum(weight.nbytes for weight in model.parameters())
        ids = torch.zeros((micro_batch, train.seq_len), dtype=torch.int64)
        if train.compile and choice == "none":
            torch.compiler.reset()  # a new model is not compiled as another size of the last
            compiled = torch.compile(model, backend="aot_eager_decomp_partition", dynamic=False, fullgraph=True)
            with bf16:
                tensors = [*model.parameters(), *compiled(ids, ids).grad_fn.saved_tensors]
            storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
            # At the backward pass's start the logits' gradient stands beside what is kept, in bf16.
            return sum(storages.values()) - weights + 2 * micro_batch * train.seq_len * model.vocab_size
        model.activation_checkpointing = choice  # type: ignore[assignment]
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            with bf16:
                loss = model(ids, ids)
            loss.backward()
        (peak,) = tracker.get_tracker_snapshot("peak").values()
        return peak["Total"] - 2 * weights


def estimate(recipe: TrainRecipe, memory: int, points: Points) -> dict[str, Any]:
    """Return all parts in bytes, an estimate for each micro-batch and choice measured, and the largest that fits.

    `activations` are the layers', `logits` everything of a step beside them: logits, their gradient, the embeddings.
    Recomputation is recommended only where nothing fits without it: it costs a third of the speed.
    """
    import torch

    from trainer.model import LanguageModel
    from trainer.optim import is_muons

    train, layers = recipe.train, recipe.model.num_hidden_layers
    with torch.device("meta"):
        named = list(LanguageModel(recipe.model, recipe.model.vocab_size or 0).named_parameters())
    parameters = sum(weight.numel() for _, weight in named)
    # Muon keeps one momentum where AdamW keeps two.
    momenta = sum(weight.numel() * (1 if is_muons(name, weight, recipe.optimizer) else 2) for name, weight in named)
    static = {"weights": 4 * parameters, "gradients": 4 * parameters, "optimizer": 4 * momenta}
    static["context"] = CONTEXT_BYTES
    usable, recommended = int(memory * (1 - MARGIN)), None
    sizes = [size for size in range(1, train.global_batch + 1) if train.global_batch % size == 0]
    sizes = [size for size in sizes if size & (size - 1) == 0 or size == train.micro_batch]
    rows: list[dict[str, Any]] = []
    for choice, (layer_sequence, layer, sequence, once) in points.items():
        fitting = None
        for size in sizes:
            activations, logits = int(layers * (layer_sequence * size + layer)), int(sequence * size + once)
            total = sum(static.values()) + activations + logits
            row = {"micro_batch": size, "activation_checkpointing": choice, "activations": activations}
            rows.append(row | {"logits": logits, "total": total, "fits": total <= usable})
            if total > usable:
                break
            fitting = rows[-1]
        recommended = recommended or fitting
    result = {"gpu_memory": memory, "usable": usable, "parameters": parameters, **static}
    return result | {"estimates": rows, "recommended": recommended}

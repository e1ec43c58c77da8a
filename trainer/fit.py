"""Which micro-batches fit in a GPU's memory, before one is rented. Runs the recipe's own model without memory or GPU.

`step_memory` measures the model at two depths and two micro-batches; memory is linear in layers and in micro-batch, so
four runs give all. One GPU is assumed, bf16 unless the recipe says fp32. Takes some ten seconds.

Not counted: what kernels allocate inside, buffers of several ranks, and the masks of `document_mask`. The margin for
these and for fragmentation is 5 % of the card beside 0.75 GB for the CUDA context and cuBLAS: a rule of thumb, held
against no card yet. Fragmentation grows with recomputation; GMLake (arXiv:2401.08156) measured 15 % on average in
fine-tuning that also offloads. `PYTORCH_ALLOC_CONF=expandable_segments:True` lowers it.
"""

from __future__ import annotations

import argparse
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.command_line import print_json
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
        print_json(result)
        return 0 if best else 1
    from shards.display import print_rows, print_summary

    static = {key: result[key] / 1e9 for key in ("weights", "gradients", "optimizer", "context", "usable")}
    print_summary(f"{recipe.name}: {result['parameters']:,} parameters; in GB:", static)
    sizes = ("activations", "logits", "total")
    print_rows([{key: row[key] / 1e9 if key in sizes else row[key] for key in row} for row in result["estimates"]])
    print(
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
    from trainer.step_memory import measure_step

    return {at: measure_step(recipe, *at[1:], choice=at[0]) for at in product(CHOICES, DEPTHS, BATCHES)}


def estimate(recipe: TrainRecipe, memory: int, points: Points) -> dict[str, Any]:
    """Return all parts in bytes, an estimate for each micro-batch and choice, and the largest that fits.

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
    matrices = sum(weight.numel() for name, weight in named if is_muons(name, weight, recipe.optimizer))
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
            activations = (high - low) * layers
            total = int(static + low + (high - low) * (layers - DEPTHS[0]))
            row = {"micro_batch": size, "activation_checkpointing": choice, "activations": int(activations)}
            row |= {"logits": int(total - static - activations), "total": total, "fits": total <= result["usable"]}
            result["estimates"].append(row)
            if not row["fits"]:
                break
            fitting.append(row)
    best = [row for row in fitting if row["activation_checkpointing"] == fitting[0]["activation_checkpointing"]]
    return result | {"recommended": best[-1] if best else None}

"""Estimate what a recipe takes on each common GPU: the micro-batch that fits, tokens per second, hours and dollars.

The speed is an estimate of two digits, from the recipe measured on an H200 whose tokens take about as many operations:
a card needs longer for matrix products by the ratio of its peak, for the rest of a step by the ratio of its memory's
bandwidth, and 4 ms at least for a micro-batch. This gives 28,000 tokens/s for gpuburnout-1b on an A100; its author saw
28,300. Without bf16 (T4), fp32 is assumed.

A card has dollars if its price is known: `--price A100=1.45 --price "RTX A6000=0.49"`, or `[cost.cards]` in the recipe.

The batch and the rate beside the recipe's are those that the shipped recipes have at their sizes: 1.45 times the root
of all tokens in a step, up to a power of two; 0.8 / width. They were tried in short runs only. Chinchilla's 20 tokens
per parameter are those that give the least loss for the operations spent; more give a better model of its size.

Memory is estimated with the recipe's own model and no GPU: a step runs on tensors that have shapes but no storage, at
two depths and two micro-batches. Its memory is linear in layers and in micro-batch, so four runs give the rest. One GPU
is assumed, and bf16 unless the recipe says fp32. It takes about fifteen seconds. `--gpu-memory` shows every part of it.

With recomputation, the memory without the compiler is counted; a compiled model needs less. Not counted: what kernels
allocate inside, buffers of several ranks, and the masks of `document_mask`. The margin for these and for fragmentation
is 5% of the card, and 0.75 GB for the CUDA context and cuBLAS. Fragmentation grows with recomputation; GMLake
(arXiv:2401.08156) measured 15% on average in fine-tuning that also offloads.
`PYTORCH_ALLOC_CONF=expandable_segments:True` lowers it.

`--measure` takes real steps on this machine, on one GPU or the CPU, and made-up tokens. MFU counts 6 * weights in
multiplications + 12 * layers * hidden_size * seq_len FLOP per token, without recomputation. Peak memory is what torch
reserved after the warm-up, on a GPU. No figure includes validation and saving.

With `--measure`, dollars are at the price of this machine: `--usd-per-hour`, else that of its card, else the recipe's
`cost.gpu_usd_per_hour`.

`--write` takes no recipe: it writes one for a set. Of eleven sizes it chooses the one for which a scaling law
(arXiv:2305.16264) predicts the least loss, after the tokens that this machine takes in the time, and after four epochs
at most. It measures that in half a minute. The recipe's comments have the figures.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import InputError, RunError, plural, shell_command
from shards.terminal.amounts import format_size
from shards.terminal.arguments import add_recipe, number_in, parse_path, parse_place, parse_size, positive_number
from shards.terminal.display import JsonObject, say
from shards.terminal.program import PROBLEMS, WHOLE, Outcome, Part

if TYPE_CHECKING:
    from trainer.recipe.schema import Recomputation, TrainRecipe

CONTEXT_BYTES = 750_000_000
MARGIN = 0.05
CHOICES: tuple[Recomputation, ...] = ("none", "selective", "full")
"""In the order in which they are recommended: recomputation costs a third of the speed."""
DEPTHS, BATCHES = (2, 3), (16, 32)
"""Where a step is measured. With fewer sequences, temporary gradients of weights can outweigh what is linear."""

Points = dict["Recomputation", list[float]]
"""Bytes of a step, by choice: for each layer of each sequence, for each layer, for each sequence, and once."""

MEASURED: dict[str, tuple[int, float]] = {
    "tinystories-91m": (757_000, 0.448),
    "proxy-30m": (1_412_000, 0.324),
    "tinystories-28m-modern": (1_819_000, 0.336),
    "gpuburnout-1b": (83_200, 0.592),
}
"""Tokens a second of shipped recipes on a card, and their share of its peak (docs/performance.md)."""
MEASURED_ON, PRODUCTS = "H200", 0.8
"""The card, and the share of its peak that it reaches in matrix products alone."""
LAUNCHES_S = 0.004
"""The least time of a micro-batch. On the H200, starting the kernels of eight layers one by one added 3.5 to 8 ms to a
step of `tinystories-28m-modern` (docs/lab/training.md)."""
RECOMPUTED = 0.75
"""The speed when the forward pass runs twice: it is a third of a step."""

ASSUMED_VOCAB_SIZE = 50_257
"""For a recipe without a vocabulary size: GPT-2's, larger than those of our recipes, so that no estimate is too low."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fit`."""
    add_recipe(parser, "a train recipe (TOML)", "--set model.vocab_size=32_000", nargs="?")
    parser.add_argument("--write", type=parse_path, metavar="FILE", help="write a train recipe for the set of --shards")
    time = parser.add_mutually_exclusive_group()
    about = "with --write: how long to train (default: 10 minutes on a CPU, one hour on a GPU)"
    time.add_argument("--hours", type=number_in(0.001, 10**5), metavar="H", help=about)
    about = "with --write: what training may cost, at --usd-per-hour"
    time.add_argument("--usd", type=number_in(0.001, 10**9), metavar="D", help=about)
    parser.add_argument("--gpu-memory", metavar="SIZE", help="show the memory of a step for a GPU of this size: 80GB")
    parser.add_argument("--measure", action="store_true", help="run training steps on this machine and measure them")
    about = "steps to measure (default: %(default)s)"
    parser.add_argument("--steps", type=positive_number, default=20, metavar="N", help=about)
    about = "a card and its price an hour, such as A40=0.40; may be given several times"
    parser.add_argument("--price", type=parse_price, action="append", default=[], metavar="CARD=USD", help=about)
    about = "with --measure or --write: the price of this machine (default: the recipe's cost.gpu_usd_per_hour)"
    parser.add_argument("--usd-per-hour", type=number_in(0, 1e6), metavar="USD", help=about)
    about = f"the shard set for --write, or one whose vocabulary size to use (default: {ASSUMED_VOCAB_SIZE:,}, GPT-2's)"
    parser.add_argument("--shards", type=parse_place, metavar="SET", help=about)


def parse_price(text: str) -> tuple[str, list[str], float]:
    """Return the change that a price of a card is, for `fit`."""
    card, _, usd = text.rpartition("=")
    if not card:
        raise argparse.ArgumentTypeError(f"expected CARD=USD, such as A40=0.40, got {text!r}")
    return "--price", ["cost", "cards", card], number_in(0.001, 10**6)(usd)


def run(options: argparse.Namespace) -> Outcome:
    """Return what `fit` says; exit status 1 if nothing fits."""
    from shards import open_set
    from trainer.commands.train import wait_without_spinning
    from trainer.recipe import load_train_recipe
    from trainer.recipe.cards import find_card

    wait_without_spinning()
    if options.write is not None:
        return write_recipe(options)
    if options.recipe is None or options.hours or options.usd:
        raise InputError("fit takes a RECIPE, or --write FILE with --shards SET, and only then --hours or --usd")
    if options.usd_per_hour is not None and not options.measure:
        raise InputError("--usd-per-hour is the price of this machine: add --measure, or give --price CARD=USD")
    memory = parse_size("--gpu-memory", options.gpu_memory, least=1_000_000) if options.gpu_memory else None
    recipe = load_train_recipe(options.recipe, options.overrides, changes=options.price)
    if recipe.model.vocab_size is None:
        if options.shards is not None:
            vocab_size = open_set(options.shards).vocab_size
        else:
            vocab_size = ASSUMED_VOCAB_SIZE
            say(
                f"{recipe.name}: no model.vocab_size; {plural(vocab_size, 'id')} are assumed, as GPT-2 has. Name the "
                "shard set with --shards SET, or add --set model.vocab_size=N."
            )
        recipe = recipe.with_values(model=recipe.model.with_values(vocab_size=vocab_size))
    result: JsonObject = {"recipe": recipe.name, "training": describe_training(recipe)}
    fits = True
    if options.measure:
        measured = measure_steps(recipe, options.steps)
        price = recipe.cost.cards.get(find_card(measured["device"]) or "", recipe.cost.gpu_usd_per_hour)
        price = price if options.usd_per_hour is None else options.usd_per_hour
        result |= {"measured": measured, "cost": price_recipe(recipe, measured["tokens_per_s"], price)}
    if memory is not None:
        result |= {"memory": estimate_memory(recipe, memory, measure_memory(recipe))}
        fits = result["memory"]["recommended"] is not None
    elif not options.measure:
        result |= {"cards": list_cards(recipe, measure_memory(recipe))}
        fits = any(row["micro_batch"] for row in result["cards"])
    return Outcome(result, _show(recipe, result), WHOLE if fits else PROBLEMS)


def write_recipe(options: argparse.Namespace) -> Outcome:
    """Write for `fit` a recipe that trains on a set, and return the command that does.

    Raises:
        InputError: the flags do not go together, the file exists, or the set cannot be trained on.
    """
    from shards.stores.files import check_own_folder, is_within, write_text
    from trainer.commands.fitted_recipe import Task, fit_recipe
    from trainer.device import choose_device
    from trainer.session import open_valid_set

    out: Path = options.write
    place, price = options.shards, options.usd_per_hour or 0.0
    if not place or options.recipe or options.gpu_memory or options.measure or options.overrides or options.price:
        raise InputError("--write takes --shards SET, and no RECIPE, --set, --price, --measure or --gpu-memory")
    if options.usd and not price:
        raise InputError("--usd needs the price of this machine. Add --usd-per-hour USD, or give --hours.")
    hours = options.usd / price if options.usd else options.hours
    if os.path.lexists(out) or is_within(out, Path(place)):
        raise InputError(f"{out}: exists, or is in the set's folder. Give another file.")
    check_own_folder(out.absolute().parent)
    task = Task(open_valid_set(place, None), out.stem, choose_device().type, hours and 3600 * hours, price)
    text = fit_recipe(task, lambda recipe: measure_steps(recipe, options.steps))
    write_text(out, text)
    train = shell_command("tokenmill", "train", out, "--shards", place, "--run", f"{place}-run")
    figures = text.replace("# ", "").splitlines()[:4]
    return Outcome({"recipe": str(out), "command": train}, [*figures, f"wrote {out}. Read it, then run:", train])


def describe_training(recipe: TrainRecipe) -> JsonObject:
    """Return for `fit` a recipe's tokens per parameter, its checkpoints in bytes, and its batch and rates with ours."""
    from trainer.commands.fitted_recipe import suggest

    sizes, train, saved = _count_static(recipe), recipe.train, recipe.checkpoint
    # The most at once: one is written before another is deleted.
    milestones = sum(step <= train.steps for step in recipe.milestones)
    kept = milestones + min(train.steps // saved.every_steps + 1, saved.keep_last + 2)
    own = train.model_dump() | recipe.optimizer.model_dump()
    ours = suggest(recipe.model.hidden_size, train.tokens, train.seq_len, recipe.optimizer.kind)
    return {
        "parameters": sizes["parameters"],
        "tokens": train.tokens,
        "tokens_per_parameter": train.tokens / sizes["parameters"],
        "checkpoint_bytes": sizes["weights"] + sizes["optimizer"],
        "checkpoints": kept,
        "choices": [{"key": key, "recipe": own[key], "suggested": value} for key, value in ours.items()],
    }


def list_cards(recipe: TrainRecipe, points: Points) -> list[JsonObject]:
    """Return for `fit` what a recipe takes on each card: the micro-batch that fits, the speed, hours and dollars."""
    from trainer.model.decoder import flops_per_token
    from trainer.recipe.cards import CARDS, FP32_CARDS

    needed = flops_per_token(recipe.model, recipe.model.vocab_size or 0, recipe.train.seq_len)
    peak, _, bandwidth = CARDS[MEASURED_ON]

    def distance(measured: tuple[int, float]) -> float:
        speed, share = measured
        return abs(math.log(needed * speed / (share * peak * 1e12)))

    _, share = min(MEASURED.values(), key=distance)
    products, rows = share / PRODUCTS, list[JsonObject]()
    for card, (tflops, memory, tb_per_s) in CARDS.items():
        # Activations in fp32 take at most twice the memory of those in bf16.
        times = 2 if card in FP32_CARDS and recipe.train.precision != "fp32" else 1
        taken: Points = {choice: [times * part for part in parts] for choice, parts in points.items()}
        best: JsonObject = estimate_memory(recipe, memory * 10**9, taken)["recommended"] or {}
        row: JsonObject = {"card": card, "gb": memory}
        row |= {key: best.get(key) for key in ("micro_batch", "activation_checkpointing")}
        cost, basis = JsonObject(), "does not fit"
        if best:
            # Of a step, products wait for arithmetic, and the rest for memory.
            slower = products * peak / tflops + (1 - products) * bandwidth / tb_per_s
            speed = share * peak * 1e12 / needed / slower
            speed *= RECOMPUTED if row["activation_checkpointing"] == "full" else 1
            speed = min(speed, row["micro_batch"] * recipe.train.seq_len / LAUNCHES_S)
            basis = "estimate, fp32" if card in FP32_CARDS else "estimate"
            cost = price_recipe(recipe, speed, recipe.cost.cards.get(card, 0))
        for key in ("tokens_per_s", "hours", "usd", "usd_per_billion_tokens"):
            row[key] = float(f"{cost[key]:.2g}") if cost.get(key) else None
        rows.append(row | {"basis": basis})
    return sorted(rows, key=lambda row: row["usd"] or math.inf)


def measure_steps(recipe: TrainRecipe, steps: int) -> JsonObject:
    """Time for `fit` steps of a recipe on made-up tokens, and return the figures of `time_steps`.

    Raises:
        InputError: the recipe cannot run here.
        RunError: the loss is not finite, or memory is too small.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            "--measure takes one GPU; found torchrun's WORLD_SIZE. Start it without torchrun: tokenmill fit"
        )
    import torch

    from trainer.commands.timed_steps import time_steps, write_made_up_set

    say(f"measuring {plural(steps, 'step')} of a model of {plural(recipe.model.hidden_size, 'feature')}")
    if recipe.train.compile:
        torch.compiler.reset()  # else a new model is compiled as another size of the last one
    with tempfile.TemporaryDirectory(prefix="tokenmill-fit-") as folder:
        try:
            return time_steps(recipe, write_made_up_set(recipe, Path(folder)), steps)
        except torch.OutOfMemoryError as error:
            raise RunError(
                f"memory is too small: {error}. Add --set train.micro_batch=N (--gpu-memory says what fits) or "
                "train.activation_checkpointing."
            ) from error


def price_recipe(recipe: TrainRecipe, tokens_per_s: float, price: float) -> JsonObject:
    """Return for `fit` what a whole recipe takes at a speed, in hours and dollars; None without a price per hour."""
    tokens = recipe.train.tokens
    hours = tokens / tokens_per_s / 3600
    usd = hours * price if price else None
    costs = {"hours": hours, "usd": usd, "usd_per_billion_tokens": usd and usd / tokens * 1e9}
    return {"tokens": tokens, "tokens_per_s": tokens_per_s, **costs}


def _show(recipe: TrainRecipe, result: JsonObject) -> Iterator[Part]:
    """Yield what `fit` prints: the training; parts of a step's memory in GB, what to choose; then other tables."""
    of = result["training"]
    yield (
        f"{recipe.name}: {plural(of['parameters'], 'parameter')}, {plural(of['tokens'], 'token')}: "
        f"{of['tokens_per_parameter']:.3g} per parameter (Chinchilla: 20)"
    )
    yield (
        f"room for checkpoints: {format_size(of['checkpoints'] * of['checkpoint_bytes'])}, "
        f"{of['checkpoints']} of {format_size(of['checkpoint_bytes'])}: milestones, the last ones, the best, a new one"
    )
    yield of["choices"]
    if memory := result.get("memory"):
        yield "in GB:"
        yield [{key: memory[key] / 1e9 for key in ("weights", "gradients", "optimizer", "context", "usable")}]
        sizes = ("activations", "logits", "total")
        yield [{**row, **{key: row[key] / 1e9 for key in sizes}} for row in memory["estimates"]]
        if best := memory["recommended"]:
            chosen = f'train.activation_checkpointing = "{best["activation_checkpointing"]}"'
            yield f"train.micro_batch = {best['micro_batch']}, {chosen}"
        else:
            yield "nothing fits: lower seq_len or the model's size, or choose a larger card"
    for part in ("measured", "cost"):
        if part in result:
            yield [result[part]]
    if cards := result.get("cards"):
        # Estimates have no more digits than they are good for.
        shown = [{k: f"{v:,.9g}" if isinstance(v, float) else v for k, v in row.items()} for row in cards]
        yield [{key: row[key] for key in row if any(other[key] for other in cards)} for row in shown]
        if not any(row["usd"] for row in cards):
            yield "for dollars, give the price of a card an hour: --price A100=1.45"


def measure_memory(recipe: TrainRecipe) -> Points:
    """Measure for `fit` the memory of a step under each choice of recomputation."""
    import numpy as np

    # Four measurements, four unknowns.
    points = list(product(DEPTHS, BATCHES))
    terms = [[layers * batch, layers, batch, 1] for layers, batch in points]
    solved: Points = {}
    for choice in CHOICES:
        taken = [measure_step(recipe, *point, choice=choice) for point in points]
        solved[choice] = np.linalg.solve(terms, taken).tolist()
    return solved


def measure_step(recipe: TrainRecipe, layers: int, micro_batch: int, *, choice: Recomputation) -> int:
    """Return for `fit` a micro-batch's bytes at its peak, without weights, gradients and optimizer, at some depth.

    torch's own `MemTracker` counts them. With `train.compile` and no recomputation, the compiler's partitioner decides
    what is kept for the backward pass. Neither is public, but no public part counts memory without allocating it.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from trainer.model.decoder import LanguageModel

    # Fake tensors have shapes and no storage; bf16 is that of a GPU.
    config, train = recipe.model.with_values(num_hidden_layers=layers), recipe.train
    bf16 = torch.autocast("cpu", torch.bfloat16, enabled=train.precision != "fp32")
    with FakeTensorMode():
        model = LanguageModel(config, config.vocab_size or 0)
        weights = sum(weight.nbytes for weight in model.parameters())
        ids = torch.zeros((micro_batch, train.seq_len), dtype=torch.int64)

        if train.compile and choice == "none":
            torch.compiler.reset()  # else a new model is compiled as another size of the last one
            compiled = torch.compile(model, backend="aot_eager_decomp_partition", dynamic=False, fullgraph=True)
            with bf16:
                loss: Any = compiled(ids, ids)
            tensors = [*model.parameters(), *loss.grad_fn.saved_tensors]
            held = [tensor.untyped_storage() for tensor in tensors]
            storages = {id(one): one.nbytes() for one in held}
            # At the start of the backward pass the logits' gradient exists as well, in bf16.
            return sum(storages.values()) - weights + 2 * micro_batch * train.seq_len * model.vocab_size

        model.activation_checkpointing = choice
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


def estimate_memory(recipe: TrainRecipe, memory: int, points: Points) -> JsonObject:
    """Return for `fit` all parts in bytes, an estimate for each micro-batch and choice, and the largest that fits.

    `activations` are the layers', `logits` the rest of a step: logits, their gradient, the embeddings. Recomputation is
    recommended only if nothing fits without it, since it costs a third of the speed.
    """
    # What does not depend on the batch, and what the card has left.
    static = _count_static(recipe)
    usable = int(memory * (1 - MARGIN))
    layers = recipe.model.num_hidden_layers
    # Powers of two, and the recipe's, that divide the global batch.
    own, batch = recipe.train.micro_batch, recipe.train.global_batch
    sizes = [size for size in range(1, batch + 1) if batch % size == 0 and (size & (size - 1) == 0 or size == own)]
    recommended = None
    rows: list[JsonObject] = []
    for choice, (layer_sequence, layer, sequence, once) in points.items():
        # Larger and larger micro-batches, until one does not fit.
        fitting = None
        for size in sizes:
            activations = int(layers * (layer_sequence * size + layer))
            logits = int(sequence * size + once)
            total = static["weights"] + static["gradients"] + static["optimizer"] + CONTEXT_BYTES + activations + logits
            row = {
                "micro_batch": size,
                "activation_checkpointing": choice,
                "activations": activations,
                "logits": logits,
                "total": total,
                "fits": total <= usable,
            }
            rows.append(row)
            if total > usable:
                break
            fitting = row
        recommended = recommended or fitting
    return {
        "usable": usable,
        "vocab_size": recipe.model.vocab_size,
        **static,
        "context": CONTEXT_BYTES,
        "estimates": rows,
        "recommended": recommended,
    }


def _count_static(recipe: TrainRecipe) -> dict[str, int]:
    """Return for `fit` the number of `parameters`, and bytes of `weights`, `gradients`, `optimizer`, all in fp32."""
    import torch

    from trainer.model.decoder import LanguageModel
    from trainer.optim import STATE, choose_optimizer

    # Shapes alone.
    with torch.device("meta"):
        named = list(LanguageModel(recipe.model, recipe.model.vocab_size or 0).named_parameters())
    parameters = sum(weight.numel() for _, weight in named)
    state = [(weight, STATE[choose_optimizer(name, weight, recipe.optimizer)]) for name, weight in named]
    momenta = sum(weight.numel() * len({*keys} - {"step"}) for weight, keys in state)
    weights = 4 * parameters
    return {"parameters": parameters, "weights": weights, "gradients": weights, "optimizer": 4 * momenta}

"""The memory estimate: its parts by hand, its extrapolation, and what the allocator really does on the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.commands.fit import (
    MEASURED_ON,
    Points,
    estimate_memory,
    list_cards,
    measure_memory,
    measure_step,
)
from trainer.model.decoder import build_model, count_parameters
from trainer.recipe import TrainRecipe, load_train_recipe
from trainer.recipe.cards import CARDS

pytestmark = pytest.mark.long


VOCAB_SIZE = 1000


def make_recipe(kind: str = "llama", *, optimizer: str = "adamw", **train: Any) -> TrainRecipe:
    model = {
        "kind": kind,
        "hidden_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "intermediate_size": 384,
        "max_position_embeddings": 256,
        "vocab_size": VOCAB_SIZE,
    }
    settings = {"seq_len": 256, "global_batch": 64, "micro_batch": 12, "steps": 10, "precision": "fp32"} | train
    settings["micro_batch"] = settings["global_batch"] if settings["global_batch"] % 12 else 12
    tables = {"name": "fit", "model": model, "train": settings, "optimizer": {"lr": 1e-3, "kind": optimizer}}
    return TrainRecipe.model_validate(tables)


@pytest.fixture(scope="module")
def points() -> dict[str, Points]:
    """What a step of the recipe takes, by kind of model. It does not depend on the optimizer and the global batch."""
    return {"llama": measure_memory(make_recipe()), "gpt2": measure_memory(make_recipe("gpt2"))}


def find_row(result: dict[str, Any], size: int, choice: str = "none") -> dict[str, Any]:
    (row,) = [
        row for row in result["estimates"] if (row["micro_batch"], row["activation_checkpointing"]) == (size, choice)
    ]
    return row


def trace_allocator(recipe: TrainRecipe, micro_batch: int, choice: str) -> int:
    """Return the bytes that the CPU's allocator handed out at its peak in one real forward and backward pass."""
    model = build_model(recipe.model, VOCAB_SIZE, seed=1)
    model.activation_checkpointing = choice  # type: ignore[assignment]
    ids = torch.zeros((micro_batch, recipe.train.seq_len), dtype=torch.int64)
    model(ids[:1, :2], ids[:1, :2]).backward()  # gradients are there, as from the second micro-batch on
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        model(ids, ids).backward()
    live = peak = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize(("kind", "choice"), [("gpt2", "none"), ("llama", "selective"), ("llama", "full")])
def test_the_estimate_is_what_the_allocator_hands_out(kind, choice, points):
    recipe = make_recipe(kind)
    row = find_row(estimate_memory(recipe, 10**12, points[kind]), 16, choice)
    assert row["activations"] + row["logits"] == pytest.approx(trace_allocator(recipe, 16, choice), rel=0.1)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_muon_has_one_momentum_for_the_layers_matrices(kind, points):
    recipe = make_recipe(kind, optimizer="muon")
    model = build_model(recipe.model, VOCAB_SIZE, seed=1)
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name)
    result = estimate_memory(recipe, 10**12, points[kind])
    assert result["optimizer"] == 8 * count_parameters(recipe.model, VOCAB_SIZE) - 4 * matrices


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # while torch imports its compiler
def test_recomputation_bf16_and_the_compiler_each_take_less():
    eager = make_recipe(precision="bf16")
    none, selective, full = (measure_step(eager, 3, 8, choice=choice) for choice in ("none", "selective", "full"))
    assert full < selective < none < measure_step(make_recipe(), 3, 8, choice="none")
    compiled = make_recipe(precision="bf16", compile=True)
    taken = [measure_step(compiled, layers, 8, choice="none") for layers in (2, 3)]
    assert taken[1] < 0.8 * none
    # By hand, in bytes per token and layer, bf16: the residual stream before both norms and what each matrix product is
    # given or, before an activation, gives: two normed, q, k, v, attended twice (as given and as got), the gate,
    # up, their product; two norms' scale, attention's normaliser. And the bf16 copies of the layer's weights.
    width, inner, heads, tokens = 128, 384, 4, 8 * 256
    a_token = 2 * 2 * width + 2 * (2 * width + 3 * width + 2 * width + 3 * inner) + 4 * (2 + heads)
    weights = 2 * (4 * width * width + 3 * width * inner)
    assert taken[1] - taken[0] == pytest.approx(tokens * a_token + weights, rel=0.1)
    # In fp32 what attention gives is kept once, and weights have no copies: they are not counted again.
    whole = [measure_step(make_recipe(compile=True), layers, 8, choice="none") for layers in (2, 3)]
    a_token = 4 * (2 * width + 2 * width + 3 * width + width + 3 * inner) + 4 * (2 + heads)
    assert whole[1] - whole[0] == pytest.approx(tokens * a_token, rel=0.01)


def test_the_largest_that_fits_without_recomputation_is_recommended(points):
    recipe = make_recipe(global_batch=48)
    roomy = estimate_memory(recipe, 10**12, points["llama"])
    sizes = [row["micro_batch"] for row in roomy["estimates"] if row["activation_checkpointing"] == "none"]
    assert sizes == [1, 2, 4, 8, 12, 16]
    assert (roomy["recommended"]["micro_batch"], roomy["recommended"]["activation_checkpointing"]) == (16, "none")
    # 5 % of the card are left free: just too small for 12, then just large enough.
    need = find_row(roomy, 12)["total"]
    for memory, best in ((need / 0.95 - 10_000, 8), (need / 0.95 + 10_000, 12)):
        assert estimate_memory(recipe, int(memory), points["llama"])["recommended"]["micro_batch"] == best


def test_each_card_has_what_fits_and_its_price(points):
    recipe = load_train_recipe(Path("tinystories-91m"), ["cost.cards.A100=3"])
    rows = {row["card"]: row for row in list_cards(recipe, points["llama"])}
    assert rows.keys() == CARDS.keys()
    measured, other = rows[MEASURED_ON], rows["A100"]
    assert (measured["tokens_per_s"], measured["basis"], other["basis"]) == (760_000, "estimate", "estimate")
    hours, billions = 30_000 * 64 * 512 / other["tokens_per_s"] / 3600, 30_000 * 64 * 512 / 1e9
    figures = (other["hours"], other["usd"], other["usd_per_billion_tokens"])
    assert figures == pytest.approx((hours, 3 * hours, 3 * hours / billions), rel=0.05)
    assert [row["card"] for row in rows.values() if row["usd"]] == ["A100"] == list(rows)[:1]
    # What fits by recomputation alone is slower.
    need = {"none": 1e12, "selective": 1e12, "full": 1e9}
    tight = {choice: [0.0, 0.0, 0.0, once] for choice, once in need.items()}
    slow = {row["card"]: row for row in list_cards(recipe, tight)}["A100"]
    assert slow["activation_checkpointing"] == "full"
    assert slow["tokens_per_s"] == pytest.approx(0.75 * other["tokens_per_s"], rel=0.05)
    never = list_cards(recipe, {"none": [0.0, 0.0, 0.0, 1e13]})
    assert {(row["micro_batch"], row["tokens_per_s"], row["basis"]) for row in never} == {(None, None, "does not fit")}


def test_the_command(trainer, recipe_file, monkeypatch):
    vocabulary = ("--set", "model.vocab_size=320")
    measured = measure_memory(load_train_recipe(recipe_file, ["model.vocab_size=320"]))
    monkeypatch.setattr("trainer.commands.fit.measure_memory", lambda _: measured)
    assert (
        'train.micro_batch = 8, train.activation_checkpointing = "none"'
        in trainer.run("fit", recipe_file, "--gpu-memory", "24GB", *vocabulary, expect=0).stdout
    )
    cards = trainer.run("fit", recipe_file, "--price", "RTX A6000=2", *vocabulary, expect=0)
    for shown in ("tiny: 74,048", "tokens: 0.083", "Chinchilla: 20", "estimate, fp32", "usd per billion tokens"):
        assert shown in cards.stdout
    assert "nothing fits" in trainer.run("fit", recipe_file, "--gpu-memory", "700MB", *vocabulary, expect=1).stdout


def test_the_shipped_demo_recipe_gets_a_vocabulary(trainer, shard_set, points, monkeypatch):
    """Its vocabulary size is that of the set it is trained on."""
    monkeypatch.setattr("trainer.commands.fit.measure_memory", lambda _: points["llama"])
    assumed = trainer.run("fit", "demo", "--gpu-memory", "24GB", "--json", expect=0)
    assert "demo: no model.vocab_size; 50,257 ids are assumed, as GPT-2 has" in assumed.stderr
    assert "Name the shard set with --shards SET, or add --set model.vocab_size=N." in assumed.stderr
    of_set = trainer.run("fit", "demo", "--gpu-memory", "24GB", "--shards", shard_set.path, "--json")
    assert (of_set.returncode, of_set.stderr) == (0, "")
    sizes = [done.json["memory"]["vocab_size"] for done in (assumed, of_set)]
    assert sizes == [50_257, shard_set.vocab_size]

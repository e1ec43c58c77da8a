"""The benchmark of training steps: real steps of both trainers on the CPU, and what is said when one of them fails."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer import bench, fit
from trainer.config import TrainRecipe
from trainer.errors import InputError
from trainer.fit import Points
from trainer.fit import measure as measure_choices
from trainer.measure import measure, write_made_up_set
from trainer.model import build_model, count_parameters, flops_per_token
from trainer.recipe import load_recipe

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

VOCAB_SIZE = 320
SETTINGS = [f"model.vocab_size={VOCAB_SIZE}", "cost.peak_tflops=0.5", "schedule.warmup_steps=0"]
GPT2 = ['model.kind="gpt2"', "model.num_key_value_heads=4", "model.tie_word_embeddings=false"]
STEPS, WARMUP = 4, 2


@pytest.fixture(scope="module")
def recipe(recipe_file: Path) -> TrainRecipe:
    return load_recipe(recipe_file, [*SETTINGS, "train.micro_batch=4"])


@pytest.fixture(scope="module")
def points() -> list[Points]:
    """What `fit` measured for the command of `result`."""
    return []


@pytest.fixture(scope="module")
def result(trainer: Any, recipe_file: Path, points: list[Points]) -> dict[str, Any]:
    """What the command prints of both trainers, each in a process of its own. Read only."""

    def measure_memory(recipe: TrainRecipe) -> Points:
        # Of the recipe's choice of recomputation alone: a third of the time.
        points.append(measure_choices(recipe, ["none"]))
        return points[0]

    counts = ("--micro-batch", 4, "--steps", STEPS, "--warmup", WARMUP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "measure", measure_memory)
        patch.setenv("OMP_NUM_THREADS", "1")
        overrides = [f"--set={item}" for item in SETTINGS]
        done = trainer.run("bench", recipe_file, *overrides, *counts, "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["recipes"]
    return found


def test_both_take_the_same_steps(result: dict[str, Any]):
    ours, theirs = result["trainers"]["ours"], result["trainers"]["transformers"]
    # The same weights and windows: the same loss before the first update, and nearly so after the same updates.
    assert theirs["loss_first"] == pytest.approx(ours["loss_first"], abs=1e-4)
    assert theirs["loss_last"] == pytest.approx(ours["loss_last"], abs=0.01)
    assert ours["loss_first"] == pytest.approx(math.log(VOCAB_SIZE), abs=0.1)
    assert ours["loss_last"] < ours["loss_first"] - 0.1
    assert result["ratio"] == pytest.approx(ours["tokens_per_s"] / theirs["tokens_per_s"])


def test_the_figures_agree_with_each_other(result: dict[str, Any], recipe: TrainRecipe, points: list[Points]):
    assert result["parameters"] == count_parameters(recipe.model, VOCAB_SIZE)
    assert (result["micro_batch"], result["tokens_per_step"]) == (4, 8 * 32)
    assert result["flops_per_token"] == flops_per_token(recipe.model, VOCAB_SIZE, 32)
    for figures in result["trainers"].values():
        assert figures["fastest_ms"] <= figures["step_ms"] <= figures["slowest_ms"]
        a_step = 1000 * result["tokens_per_step"] / figures["tokens_per_s"]
        assert figures["fastest_ms"] <= a_step <= figures["slowest_ms"]
        assert figures["mfu"] == pytest.approx(figures["tokens_per_s"] * result["flops_per_token"] / 0.5e12)
        assert figures["peak_memory"] > 16 * result["parameters"]
        assert figures["warmup_s"] > 0
    assert result["trainers"]["ours"]["data_wait_ms"] >= 0
    memory = fit.estimate(recipe, 1 << 62, points[0])
    needs = {(row["micro_batch"], row["activation_checkpointing"]): row["total"] for row in memory["estimates"]}
    assert result["estimated_memory"] == needs[4, "none"] - memory["context"]


def test_the_table(result: dict[str, Any], capsys: pytest.CaptureFixture[str]):
    ours = result["trainers"]["ours"]
    failed = {**result, "trainers": {**result["trainers"], "transformers": {"error": "out of memory"}}, "ratio": None}
    bench.print_results([result, failed], goals={"tiny": 1_000})
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line.strip().startswith("tiny: ")]
    assert [row[1:3] for row in rows[1::2]][1] == ["transformers", "failed"]
    assert f"{ours['tokens_per_s']:,.0f}" in rows[0]
    assert f"{ours['mfu']:.1%}" in rows[0]
    assert rows[0][-1] == f"{result['ratio']:.2f}"
    assert "6 * weights that are multiplied" in printed
    assert "resident memory" in printed
    assert "goal" not in printed  # it is for an H200
    on_h200 = {**result, "trainers": {"ours": {**ours, "device": "NVIDIA H200", "tokens_per_s": 999.0}}, "ratio": None}
    bench.print_results([on_h200], goals={"tiny": 1_000})
    assert "goal on an H200, at least 1,000 tokens/s: missed" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_their_model_begins_with_our_weights(kind: str, recipe_file: Path):
    from trainer.beside import build_theirs

    recipe = load_recipe(recipe_file, [*SETTINGS, *(GPT2 if kind == "gpt2" else ())])
    theirs, ours = build_theirs(recipe, VOCAB_SIZE), build_model(recipe.model, VOCAB_SIZE, seed=recipe.train.seed)
    ids = torch.randint(VOCAB_SIZE, (2, 32), generator=torch.Generator().manual_seed(1))
    assert type(theirs).__name__ == {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel"}[kind]
    torch.testing.assert_close(theirs(input_ids=ids).logits, ours(ids), atol=1e-4, rtol=0)


def test_the_made_up_set_is_whole(recipe: TrainRecipe, tmp_path: Path):
    from shards.validate import validate

    assert validate(write_made_up_set(recipe, tmp_path), level="full").problems == []


def test_a_failure_of_theirs_does_not_cost_our_figures(
    recipe: TrainRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("trainer.beside.build_theirs", fail)
    assert "no such kernel" in measure("transformers", recipe, write_made_up_set(recipe, tmp_path), 1, 1)["error"]


def test_out_of_memory_names_the_next_smaller_that_fits(
    recipe: TrainRecipe, recipe_file: Path, tmp_path: Path, trainer: Any, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("trainer.measure.take_step", fail)
    found = measure("ours", recipe, write_made_up_set(recipe, tmp_path), 1, 1)
    assert found["error"] == "out of memory"
    found["error"] += bench.advise({1: 100, 2: 150, 4: 250, 8: 400}, 8, 260)
    assert "The next smaller" not in bench.advise({1: 100, 2: 150}, 2, 50)
    failed = {"recipe": "tiny", "estimated_memory": 400, "ratio": None, "trainers": {"ours": found}}
    monkeypatch.setattr(bench, "bench", lambda *_, **__: failed | dict.fromkeys(bench.SETTINGS, 1))
    done = trainer.run("bench", recipe_file, "--set", SETTINGS[0], "--beside", "none")
    assert done.returncode == 1
    assert (
        "tiny: ours: out of memory with train.micro_batch = 8. By `fit` the next smaller that fits is 4" in done.stderr
    )


def test_a_gpu_that_is_absent_is_refused_as_in_train(recipe: TrainRecipe, tmp_path: Path):
    asked = recipe.model_copy(update={"train": recipe.train.model_copy(update={"device": "cuda"})})
    with pytest.raises(InputError, match=r"train\.device = 'cuda': torch finds \d+ GPUs, expected 1") as refused:
        measure("ours", asked, tmp_path, 1, 1)
    # It comes from another process whole.
    assert pickle.loads(pickle.dumps(refused.value)).problems == refused.value.problems


def test_what_cannot_be_measured_is_refused(trainer: Any, recipe_file: Path, monkeypatch: pytest.MonkeyPatch):
    sizeless = trainer.run("bench", recipe_file)
    assert sizeless.returncode == 2
    assert "tiny: no model.vocab_size. Add --set model.vocab_size=N." in sizeless.stderr
    odd = trainer.run("bench", recipe_file, "--micro-batch", 3)
    assert odd.returncode == 2
    assert "train.global_batch = 8 with train.micro_batch = 3" in odd.stderr
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks = trainer.run("bench", recipe_file, "--set", SETTINGS[0])
    assert ranks.returncode == 2
    assert "bench measures one GPU" in ranks.stderr

"""Measured training steps: real steps on the CPU, what follows from them, and what is said when they fail."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from shards.errors import InputError, RunError
from tests.benchmarks import on_gpu
from trainer.commands.timed_steps import time_steps, write_made_up_set
from trainer.model.decoder import flops_per_token
from trainer.recipe import TrainRecipe, load_train_recipe
from trainer.recipe.eval_config import EvalSetConfig
from trainer.session import open_session

pytestmark = pytest.mark.long


VOCAB_SIZE = 320
SETTINGS = [f"model.vocab_size={VOCAB_SIZE}", "cost.peak_tflops=0.5", "schedule.warmup_steps=0", "train.micro_batch=4"]
OVERRIDES = [f"--set={item}" for item in SETTINGS]
STEPS = 4
NO_SET = EvalSetConfig(name="web", shards="/no-such-folder")


@pytest.fixture(scope="module")
def recipe(recipe_file) -> TrainRecipe:
    return load_train_recipe(recipe_file, SETTINGS)


def test_the_figures_agree_with_each_other(trainer, recipe_file, recipe, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    price = "--set=cost.gpu_usd_per_hour=3.6"
    done = trainer.run("fit", recipe_file, *OVERRIDES, price, "--measure", "--steps", STEPS, "--json", expect=0)
    found = done.json
    row, cost = found["measured"], found["cost"]
    assert math.log(VOCAB_SIZE) - 1 < row["loss"] < math.log(VOCAB_SIZE) - 0.1
    assert (found["recipe"], row["device"][:5], row["precision"]) == ("tiny", "CPU, ", "fp32")
    flops = row["tokens_per_s"] * flops_per_token(recipe.model, VOCAB_SIZE, recipe.train.seq_len)
    assert row["mfu"] == pytest.approx(flops / 0.5e12, rel=0.01)
    assert row["peak_gb"] is None
    assert cost["tokens_per_s"] == row["tokens_per_s"]
    assert cost["usd"] == pytest.approx(24 * 8 * 32 / row["tokens_per_s"] / 1000)


def test_eval_sets_and_tasks_are_not_opened(recipe, tmp_path):
    sets = recipe.with_values(eval=recipe.eval.with_values(sets=[NO_SET]))
    with pytest.raises(InputError, match="no-such-folder"):
        open_session(sets, write_made_up_set(recipe, tmp_path), tmp_path / "run", say=print)
    assert time_steps(sets, tmp_path / "set", 1)["tokens_per_s"] > 0


def test_a_loss_that_is_not_finite_is_no_figure(recipe, tmp_path):
    optimizer = recipe.optimizer.with_values(lr=1e30)
    steep = recipe.with_values(optimizer=optimizer)
    with pytest.raises(RunError, match="the mean loss is nan; expected a finite one"):
        time_steps(steep, write_made_up_set(recipe, tmp_path), 1)


def test_what_cannot_be_measured_says_why(trainer, recipe_file, monkeypatch):
    def run_out_of_memory(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("trainer.commands.timed_steps.time_steps", run_out_of_memory)
    measure = ("fit", recipe_file, *OVERRIDES, "--measure")
    full = trainer.run(*measure, expect=1)
    assert "memory is too small: CUDA out of memory. Add --set train.micro_batch=N" in full.stderr
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks = trainer.run(*measure, expect=2)
    assert "--measure takes one GPU" in ranks.stderr


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_what_is_measured_on_a_gpu_rehearses_on_a_cpu(tmp_path: Path):
    rows = on_gpu.Run(300, tmp_path).measure()
    rows += on_gpu.Run(300, tmp_path).measure_build()
    assert not [row for row in rows if "error" in row or "skipped" in row]
    assert {row["what"] for row in rows} >= {"ceilings", "layers", "build", "bare", "loader"}
    assert [row["part"] for row in rows if row["what"] == "steps"] == ["start", "steps", "validation"]
    *steps, compared = on_gpu.Run(300, tmp_path).measure_rows()
    timed = [row["overrides"][-1] for row in steps if row["part"] == "steps"]
    assert timed == ["train.rows=windows", "train.rows=packed"]
    assert compared["packed_over_windows"]["tokens_per_s"] > 0

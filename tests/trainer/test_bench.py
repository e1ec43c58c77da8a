"""The benchmark of training steps: real steps on the CPU, and what is said when they fail."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from shards.errors import InputError
from tests.benchmarks import on_gpu
from trainer.commands import fit
from trainer.commands.bench_steps import time_steps, write_made_up_set
from trainer.eval_config import EvalSetConfig
from trainer.model.decoder import count_parameters, flops_per_token
from trainer.recipe import TrainRecipe, load_train_recipe
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
    done = trainer.run("bench", recipe_file, *OVERRIDES, "--steps", STEPS, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["recipes"]
    assert math.log(VOCAB_SIZE) - 1 < row["loss"] < math.log(VOCAB_SIZE) - 0.1
    assert (row["recipe"], row["device"], row["precision"]) == ("tiny", "CPU, 1 thread", "fp32")
    flops = row["tokens_per_s"] * flops_per_token(recipe.model, VOCAB_SIZE, recipe.train.seq_len)
    assert row["mfu"] == pytest.approx(flops / 0.5e12, rel=0.01)
    assert row["peak_gb"] * 1e9 > 16 * count_parameters(recipe.model, VOCAB_SIZE)
    memory = fit.estimate_memory(recipe, 1 << 62, fit.measure_memory(recipe, ["none"]))
    (total,) = [row["total"] for row in memory["estimates"] if row["micro_batch"] == 4]
    assert row["fit_gb"] * 1e9 == pytest.approx(total - memory["context"])
    # Of the precision that ran, whatever `auto` would be here.
    auto = load_train_recipe(recipe_file, [*SETTINGS, 'train.precision="auto"'])
    assert fit.expect_memory(auto, "fp32") == pytest.approx(row["fit_gb"])


def test_eval_sets_and_tasks_are_not_opened(recipe, tmp_path):
    sets = recipe.model_copy(update={"eval": recipe.eval.model_copy(update={"sets": [NO_SET]})})
    with pytest.raises(InputError, match="no-such-folder"):
        open_session(sets, write_made_up_set(recipe, tmp_path), tmp_path / "run", resume="never", say=print)
    assert time_steps(sets, tmp_path / "set", 1)["tokens_per_s"] > 0


def test_a_loss_that_is_not_finite_is_no_figure(trainer, recipe_file):
    done = trainer.run("bench", recipe_file, *OVERRIDES, "--steps", 1, "--json", "--set", "optimizer.lr=1e30")
    assert done.returncode == 1
    assert "the mean loss is nan; expected a finite one" in json.loads(done.stdout)["recipes"][0]["error"]


def test_out_of_memory_says_what_to_do(trainer, recipe_file, monkeypatch):
    monkeypatch.setattr("trainer.commands.bench_steps.time_steps", run_out_of_memory)
    done = trainer.run("bench", recipe_file, *OVERRIDES, "--json")
    assert done.returncode == 1
    assert "error: tiny: OutOfMemoryError('CUDA out of memory')" in done.stderr
    assert "--set train.micro_batch=N (`fit` says what fits)" in done.stderr
    (row,) = json.loads(done.stdout)["recipes"]
    assert row["error"].startswith("OutOfMemoryError")


def run_out_of_memory(*_: Any) -> Any:
    """Raise what torch raises, in the process that measures."""
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_what_cannot_be_measured_is_refused(trainer, recipe_file, monkeypatch):
    odd = trainer.run("bench", recipe_file, "--set", "train.micro_batch=3")
    assert odd.returncode == 2
    assert "train.global_batch = 8 with train.micro_batch = 3" in odd.stderr
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks = trainer.run("bench", recipe_file, "--set", SETTINGS[0])
    assert ranks.returncode == 2
    assert "bench measures one GPU" in ranks.stderr


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_what_is_measured_on_a_gpu_rehearses_on_a_cpu(tmp_path: Path) -> None:
    rows = on_gpu.Run(300, tmp_path).measure()
    assert not [row for row in rows if "error" in row or "skipped" in row]
    assert {row["what"] for row in rows} >= {"muon equal", "attention", "layers", "steps"}
    losses = {row["loss"] for row in rows if row["what"] == "layers"}
    assert max(losses) - min(losses) < 1e-4

"""Comparing GPUs by dollars per billion tokens: entered and measured throughput."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shards.errors import InputError
from trainer.commands.cost import measure_throughput, price
from trainer.recipe import TrainRecipe, load_train_recipe


@pytest.fixture
def recipe(recipe_file) -> TrainRecipe:
    return load_train_recipe(recipe_file)


def write_run(run: Path, recipe: TrainRecipe, *lines: dict[str, Any]) -> None:
    (run / "recipe.json").write_text(recipe.model_dump_json())
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_dollars_per_billion_tokens_by_hand(recipe):
    # The 1.04 B run of the README's kind: 28,300 tokens/s at $1.45 an hour for 11.8 B tokens.
    cost = price("A100=1.45:28,300", recipe, 11_800_000_000)
    assert cost["usd_per_billion_tokens"] == pytest.approx(14.2324, rel=1e-4)
    assert cost["recipe_hours"] == pytest.approx(115.822, rel=1e-4)
    assert cost["recipe_usd"] == pytest.approx(167.942, rel=1e-4)
    assert cost["throughput"] == "entered"


def test_a_runs_throughput_is_its_median_without_the_start(tmp_path, recipe):
    speeds = [1.0, 90.0, 100.0, 110.0, 100.0, 100.0, 100.0, 100.0, 100.0, 5_000.0]
    lines = [{"step": step, "tokens_per_s": speed} for step, speed in enumerate(speeds)]
    write_run(tmp_path, recipe, *lines, {"step": 10, "val_loss": 1.0})
    assert measure_throughput(tmp_path, recipe) == 100.0
    write_run(tmp_path, recipe, {"step": 1, "tokens_per_s": 100.0, "ranks": 4})
    assert measure_throughput(tmp_path, recipe) == 25.0  # of one card, as its price is
    write_run(tmp_path, recipe)
    with pytest.raises(InputError, match="no step with a throughput"):
        measure_throughput(tmp_path, recipe)


def test_a_run_of_another_model_is_refused(tmp_path, recipe, recipe_file):
    write_run(tmp_path, recipe, {"step": 1, "tokens_per_s": 100.0})
    for change in ("model.num_hidden_layers=5", "train.seq_len=16"):
        with pytest.raises(InputError, match="trained another model, or with another seq_len"):
            price(f"H100=2:{tmp_path}", load_train_recipe(recipe_file, [change]), 1_000)
    assert measure_throughput(tmp_path, load_train_recipe(recipe_file, ["train.steps=7", "optimizer.lr=1.0"])) == 100.0


def test_the_command(trainer, recipe_file, tmp_path):
    write_run(tmp_path, load_train_recipe(recipe_file), {"step": 1, "tokens_per_s": 1000.0})
    gpus = ("--gpu", f"H100=3.6:{tmp_path}", "--gpu", "H200=7.2:4,000")
    done = trainer.run("cost", recipe_file, *gpus, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tokens"] == 24 * 8 * 32
    assert [gpu["usd_per_billion_tokens"] for gpu in result["gpus"]] == pytest.approx([500.0, 1000.0])
    table = trainer.run("cost", recipe_file, *gpus)
    assert "measured" in table.stdout
    assert "1,000.00" in table.stdout
    refused = trainer.run("cost", recipe_file, "--gpu", "H100=2")
    assert refused.returncode == 2
    assert "NAME=USD_PER_HOUR:TOKENS_PER_S" in refused.stderr
    refused = trainer.run("cost", recipe_file, "--gpu", f"H100=2:{tmp_path / 'absent'}")
    assert refused.returncode == 2
    assert "or :RUN, a training run" in refused.stderr

"""Plots of a run's metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.recipe import PhaseConfig, load_train_recipe
from trainer.results.picture import draw_run, draw_runs, smooth
from trainer.results.runs import read_run

ENDS = {"smoke": 10, "long": 40, "later": 90}
PHASES = [PhaseConfig(name=name, until_step=step) for name, step in ENDS.items()]


@pytest.fixture
def run_folder(recipe_file, tmp_path) -> Path:
    """Return the folder of a run of 50 steps with phases and two sources."""
    lines: list[dict[str, Any]] = []
    for step in range(1, 51):
        figures = {"step": step, "tokens": step * 100, "loss": 5 / step, "lr": 1e-3}
        lines.append(figures | {"tokens_per_s": 1000.0 + step, "usd": step * 0.01})
        if step % 10 == 0:
            lines.append({"step": step, "val_loss": 6 / step, "val_loss_by_source": {"a": 5 / step, "step": 7 / step}})
            lines[-1]["usd"] = step * 0.02
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = load_train_recipe(recipe_file, ["train.steps=90"]).model_dump(mode="json")
    (tmp_path / "recipe.json").write_text(json.dumps(recipe | {"phases": [phase.model_dump() for phase in PHASES]}))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "run.json").write_text('{"shards": "/set", "manifest_sha256": "0"}')
    return tmp_path


def test_every_number_has_its_curve_and_its_panel_in_words(run_folder):
    figure = draw_run(read_run(run_folder))
    assert [text.get_text() for axis in figure.axes for text in axis.get_legend().get_texts()] == [
        "training loss, mean of 10 steps",
        "validation loss: 0.1200",
        "a: 0.1000",
        "step: 0.1400",
        "learning rate, mean of 10 steps",
        "tokens per second, mean of 10 steps",
        "US dollars, mean of 10 steps",
    ]
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "loss\nnats per token",
        "validation loss by source\nnats per token",
        "learning rate",
        "tokens per second",
        "US dollars",
    ]
    raw, smoothed, validation, *ends = figure.axes[0].lines
    assert list(raw.get_ydata()) == [5 / step for step in range(1, 51)]
    assert raw.get_alpha() < 1
    assert list(smoothed.get_ydata()) == pytest.approx(smooth([5 / step for step in range(1, 51)], 10))
    assert list(validation.get_xdata()) == [10, 20, 30, 40, 50]
    # The phases that have ended are marked.
    assert [line.get_xdata()[0] for line in ends] == [10, 40]
    assert [text.get_text() for text in figure.axes[0].texts] == ["smoke", "long"]
    # A column is as wide as the numbers of all its rows: the last validation costs more than the last step.
    assert draw_runs([read_run(run_folder)], [("usd", 1, "US dollars")]).axes[0].get_xlim()[1] > 1.0


def test_the_command_draws_a_run(trainer, run_folder):
    done = trainer.run("plot", run_folder, "--json")
    assert done.returncode == 0, done.stderr
    paths = json.loads(done.stdout)["plots"]
    assert [Path(path).name for path in paths] == ["metrics.png", "metrics.svg"]
    assert Path(paths[0]).read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path(paths[1]).read_text()
    done = trainer.run("plot", run_folder, "--out", run_folder / "new/plots")
    assert done.stdout.split() == [str(run_folder / "new/plots" / f"metrics.{suffix}") for suffix in ("png", "svg")]

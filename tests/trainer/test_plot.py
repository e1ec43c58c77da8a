"""Plots of a run's metrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shards.errors import InputError
from trainer.recipe import PhaseConfig, load_train_recipe
from trainer.results.curves import smooth
from trainer.results.run_plot import draw_run

ENDS = {"smoke": 10, "long": 40, "later": 90}
PHASES = [PhaseConfig(name=name, until_step=step) for name, step in ENDS.items()]


def make_records(steps: int = 50, **changes: Any) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        figures = {"step": step, "tokens": step * 100, "loss": 5 / step, "lr": 1e-3}
        figures |= {"tokens_per_s": 1000.0 + step, "usd": step * 0.01}
        records.append({key: value for key, value in (figures | changes).items() if value is not None})
        if step % 10 == 0:
            records.append({"step": step, "val_loss": 6 / step})
    return records


def list_labels(figure: Any) -> list[str]:
    """Return the labels of the figure's legends, from the top."""
    return [text.get_text() for axis in figure.axes for text in axis.get_legend().get_texts()]


def test_every_number_has_its_curve_and_its_panel_in_words():
    figure = draw_run(make_records(), [], title="run")
    assert list_labels(figure) == [
        "training loss, each step",
        "training loss, mean of 10 steps",
        "validation loss",
        "learning rate",
        "throughput, each step",
        "throughput, mean of 10 steps",
        "cost so far: $0.50",
    ]
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "loss, nats per token",
        "learning rate",
        "tokens per second",
        "US dollars",
    ]
    raw, smoothed, validation = figure.axes[0].lines
    assert list(raw.get_ydata()) == [5 / step for step in range(1, 51)]
    assert raw.get_alpha() < 1
    assert list(smoothed.get_ydata()) == pytest.approx(smooth([5 / step for step in range(1, 51)], 10))
    assert list(validation.get_xdata()) == [10, 20, 30, 40, 50]


def test_goals_are_drawn_over_their_phase_with_their_outcome():
    phases = [
        PhaseConfig(name="smoke", until_step=10, goal="val_loss < 1.0"),
        PhaseConfig(name="long", until_step=40, goal="loss <= 0.1"),
        PhaseConfig(name="later", until_step=90, goal="val_loss < 0.1"),
    ]
    figure = draw_run(make_records(), phases, title="run")
    assert [label for label in list_labels(figure) if label.startswith("goal")] == [
        "goal of smoke:\nvalidation loss < 1.0, met",
        "goal of long:\ntraining loss <= 0.1, missed",
        "goal of later:\nvalidation loss < 0.1, open",
    ]
    goals = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert [list(line.get_xdata()) for line in goals] == [[0, 10], [10, 40], [40, 50]]
    assert [line.get_ydata()[0] for line in goals] == [1.0, 0.1, 0.1]


def test_nothing_logged_is_nothing_to_draw():
    with pytest.raises(InputError, match="nothing to draw"):
        draw_run([], [], title="run")


def test_the_command_draws_a_run_and_refuses_what_is_none(trainer, recipe_file, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in make_records()))
    recipe = load_train_recipe(recipe_file, ["train.steps=90"]).model_dump(mode="json")
    (tmp_path / "recipe.json").write_text(json.dumps(recipe | {"phases": [phase.model_dump() for phase in PHASES]}))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "set.json").write_text('{"path": "/set", "manifest_sha256": "0"}')
    done = trainer.run("plot", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    paths = json.loads(done.stdout)["plots"]
    assert [Path(path).name for path in paths] == ["metrics.png", "metrics.svg"]
    assert all(Path(path).stat().st_size > 10_000 for path in paths)
    assert Path(paths[0]).read_bytes().startswith(b"\x89PNG")
    assert "<svg" in Path(paths[1]).read_text()
    done = trainer.run("plot", tmp_path, "--out", tmp_path / "new/plots")
    assert done.stdout.split() == [str(tmp_path / "new/plots" / f"metrics.{suffix}") for suffix in ("png", "svg")]
    refused = trainer.run("plot", tmp_path / "absent")
    assert refused.returncode == 2
    assert "metrics.jsonl: is missing" in refused.stderr
    for content in ("[]", "{", '{"phases": 3}', '{"phases": [{}]}', "\xff"):
        (tmp_path / "recipe.json").write_bytes(content.encode("latin-1"))
        refused = trainer.run("plot", tmp_path, "--json")
        assert refused.returncode == 2
        assert "recipe.json" in json.loads(refused.stdout)["problems"][0]

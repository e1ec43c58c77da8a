"""Plots of a run's metrics, and TensorBoard events where the package is there."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from shards.errors import InputError
from trainer.commands.plot import draw, open_events
from trainer.config import PhaseConfig
from trainer.recipe import load_recipe

ENDS = {"smoke": 10, "long": 40, "later": 90}
PHASES = [PhaseConfig(name=name, until_step=step) for name, step in ENDS.items()]


def make_records(steps: int = 50, **changes: Any) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        figures = {"step": step, "loss": 5 / step, "lr": 1e-3, "tokens_per_s": 1000.0 + step, "usd": step * 0.01}
        records.append({key: value for key, value in (figures | changes).items() if value is not None})
        if step % 10 == 0:
            records.append({"step": step, "val_loss": 6 / step})
    return records


def test_every_number_has_its_line_and_its_panel():
    figure = draw(make_records(), [], title="run")
    lines = {line.get_label(): line for axis in figure.axes for line in axis.lines}
    assert list(lines) == ["loss", "val_loss", "lr", "tokens_per_s", "usd"]
    assert [axis.get_ylabel().split("\n")[0] for axis in figure.axes] == ["loss", "learning rate", "throughput", "cost"]
    assert list(lines["val_loss"].get_xdata()) == [10, 20, 30, 40, 50]
    assert list(lines["usd"].get_ydata())[-1] == pytest.approx(0.5)
    assert len(lines["loss"].get_xdata()) == 50


def test_a_run_without_a_price_has_no_panel_of_dollars():
    figure = draw(make_records(usd=None), [], title="run")
    assert [axis.get_ylabel().split("\n")[0] for axis in figure.axes] == ["loss", "learning rate", "throughput"]


def test_phases_reached_are_marked_and_those_begun_are_named():
    figure = draw(make_records(), PHASES, title="run")
    for axis in figure.axes:
        assert [line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == "--"] == [10, 40]
    assert [text.get_text() for text in figure.axes[0].texts] == ["smoke", "long", "later"]
    assert [text.xy[0] for text in figure.axes[0].texts] == [5, 25, 45]
    early = draw(make_records(8), PHASES, title="run")
    assert [text.get_text() for text in early.axes[0].texts] == ["smoke"]


def test_nothing_logged_is_nothing_to_draw():
    with pytest.raises(InputError, match="nothing to draw"):
        draw([], [], title="run")


def test_the_command_draws_a_run_and_refuses_what_is_none(trainer: Any, recipe_file: Path, tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in make_records()))
    recipe = load_recipe(recipe_file, ["train.steps=90"]).model_dump(mode="json")
    (tmp_path / "recipe.json").write_text(json.dumps(recipe | {"phases": [phase.model_dump() for phase in PHASES]}))
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


def test_phases_that_ended_before_the_first_line_are_left_out():
    phases = [PhaseConfig(name=name, until_step=step) for name, step in (("early", 5), ("late", 30))]
    figure = draw([{"step": step, "loss": 1.0} for step in range(11, 21)], phases, title="run")
    assert [text.get_text() for text in figure.axes[0].texts] == ["late"]


def test_events_only_where_the_package_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))
    assert open_events(tmp_path) is None


def test_events_hold_the_numbers_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str):
            assert folder == str(tmp_path / "tensorboard")

        def add_scalar(self, *scalar: Any) -> None:
            written.append(scalar)

        def flush(self) -> None:
            written.append(("flushed", 0, 0))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    write = open_events(tmp_path)
    assert write is not None
    write({"step": 3, "loss": 2.5, "val_loss_by_source": {"prose": 1.0}})
    assert written == [("loss", 2.5, 3), ("flushed", 0, 0)]

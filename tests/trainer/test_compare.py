"""Pictures of runs, by `plot` and `compare`. What `compare` says stands in the golden file."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from tests.support.compared_runs import write_run
from trainer.results.picture import draw_run, draw_runs, smooth
from trainer.results.runs import read_run, read_runs


@pytest.mark.parametrize(
    ("missing", "over"), [("", "steps, tokens, time, dollars"), ("tokens|seconds|loss", "steps, dollars")]
)
def test_the_picture_and_the_page_need_nothing_else(missing, over, recipe_file, trainer, tmp_path):
    runs = [tmp_path / "a", tmp_path / "b<script>"]
    for run in runs:
        write_run(run, recipe=recipe_file, scores={"web_bpb": (1.5, 0.1)})
        metrics = run / "metrics.jsonl"
        metrics.write_text(re.sub(f'"({missing})":', r'"old_\1":', metrics.read_text()))
    done = trainer.run("compare", *runs, "--out", tmp_path / "out/new", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    page, png, svg = map(Path, json.loads(done.stdout)["files"])
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
    text = page.read_text()
    assert "<script" not in text
    assert f"over {over}" in text
    assert draw_runs(read_runs(runs), [("step", 1, ""), ("absent", 1, "")]).axes[1].get_legend().get_texts()
    assert "b&lt;script&gt;" in text
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", text)
    (picture,) = re.findall(r'<img class="curves" src="data:image/svg\+xml;base64,([^"]+)"', text)
    assert b"<svg" in base64.b64decode(picture)


ENDS = {"smoke": 10, "long": 40, "later": 90}


def test_every_number_has_its_curve_and_its_panel_in_words(recipe_file, trainer, tmp_path):
    phases = ", ".join(f"{{name='{name}', until_step={step}}}" for name, step in ENDS.items())
    of = {"val_loss_by_source": {"a": 0.1, "step": 0.14}, "usd": 90}
    run = tmp_path / "run"
    write_run(run, "train.steps=90", f"phases=[{phases}]", steps=50, recipe=recipe_file, **of)
    figure = draw_run(read_run(run))
    assert [text.get_text() for axis in figure.axes for text in axis.get_legend().get_texts()] == [
        "training loss, mean of 10 steps",
        "validation loss: 3.0417",
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
    losses = [3 + 1 / step for step in range(1, 51)]
    assert list(raw.get_ydata()) == losses
    assert raw.get_alpha() < 1
    assert list(smoothed.get_ydata()) == pytest.approx(smooth(losses, 10))
    assert list(validation.get_xdata()) == [8, 16, 24, 32, 40, 48]
    # The phases that have ended are marked.
    assert [line.get_xdata()[0] for line in ends] == [10, 40]
    assert [text.get_text() for text in figure.axes[0].texts] == ["smoke", "long"]
    # A column is as wide as the numbers of all its rows: the last validation costs more than the last step.
    assert draw_runs([read_run(run)], [("usd", 1, "US dollars")]).axes[0].get_xlim()[1] > 90
    done = trainer.run("plot", run, "--out", tmp_path / "new/plots", "--json")
    png, svg = map(Path, json.loads(done.stdout)["plots"])
    assert (png, svg) == (tmp_path / "new/plots/metrics.png", tmp_path / "new/plots/metrics.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()

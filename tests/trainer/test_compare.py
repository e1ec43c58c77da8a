"""Pictures of runs, by `plot` and `compare`. What `compare` says stands in the golden file."""

import base64
import io
import json
import re
import statistics
from pathlib import Path

import pytest
from matplotlib.image import imread

from tests.support.builds import read_json
from tests.support.compared_runs import write_run
from trainer.results.picture import draw_run, draw_runs, render_figure, smooth
from trainer.results.runs import read_run, read_runs
from trainer.run_folder import sample_file


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
    page, png, svg = map(Path, done.json["files"])
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
    png, svg = map(Path, done.json["plots"])
    assert (png, svg) == (tmp_path / "new/plots/metrics.png", tmp_path / "new/plots/metrics.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()


def test_the_bill_and_the_samples_of_a_run_are_in_its_page_and_its_plot(recipe_file, trainer, tmp_path):
    run = tmp_path / "run"
    changes = ("phases=[{name='smoke', until_step=8, pause=true}]", "cost={other_usd={upload=8}, gpu_usd_per_hour=2}")
    parts = [2.9, 3.1, 3.0, 3.2]
    write_run(run, *changes, recipe=recipe_file, val_loss_by_part=parts, val_perplexity=20.0)
    record = read_json(run / "run.json")
    # Three hours between two beginnings, of which the run was at work in one.
    record |= {"parameters": 1000, "processes": [[1000.0, 0.0], [11800.0, 3600.0]]}
    (run / "run.json").write_text(json.dumps(record))
    sample_file(run, 8).parent.mkdir()
    for step, text in {8: "one <b>", 24: "two\nlines"}.items():
        sample_file(run, step).write_text(json.dumps({"prompt": "the mill", "text": f" {text}"}) + "\n")
    data = trainer.run("compare", run, "--out", tmp_path, "--json").json
    assert [(row["item"], row["steps"], row["usd"]) for row in data["bill"]] == [
        ("smoke", 8, 4.0),
        ("after the phases", 16, 8.0),
        ("upload", None, 8.0),
        ("total", 24, 20.0),
    ]
    assert data["bill"][1]["tokens_per_parameter"] == 24 * 256 / 1000
    idle = "run spent 2.0 h starting and between its processes, not in its cost: $4.00 for each GPU"
    assert idle in str(data["notes"])
    assert [(row["prompt"], row["step"]) for row in data["samples"]] == [("the mill", 8), ("the mill", 24)]
    (perplexity,) = [row for row in data["scores"] if row["score"] == "val_perplexity"]
    loss_stderr = statistics.stdev(parts) / len(parts) ** 0.5
    assert (perplexity["value"], perplexity["stderr"]) == (20.0, pytest.approx(20 * loss_stderr))
    page = (tmp_path / "compare.html").read_text()
    assert page.count("one &lt;b&gt;") == page.count("> two\nlines</pre>") == page.count("after the phases") == 1
    figure = draw_run(read_run(run))
    assert "after the phases" in figure._supxlabel.get_text()  # pyright: ignore[reportPrivateUsage]
    assert "validation loss, perplexity 20.00: 3.0833" in str(figure.axes[0].get_legend_handles_labels())
    for text in ("{}", "[" * 100_000):
        sample_file(run, 24).write_text(text)
        assert "is not what `train` writes. Delete it." in trainer.run("compare", run).stderr


def test_no_label_of_a_picture_is_cut_off(recipe_file, tmp_path):
    """Its edge is white, whatever the names are: of phases that end together, of scores, of the run."""
    phases = ", ".join(f"{{name='{step} {'a long name ' * 9}', until_step={step}}}" for step in (1, 49, 50))
    changes = (f"name='{'words ' * 30}'", "train.steps=50", f"phases=[{phases}]", "cost.gpu_usd_per_hour=3")
    scores = {"long_names_" * 4 + "bpb": (1.5, 0.1)}
    write_run(tmp_path / "run", *changes, steps=50, recipe=recipe_file, scores=scores, usd=90, seconds=10)
    pixels = imread(io.BytesIO(render_figure(draw_run(read_run(tmp_path / "run")), "png")))[..., :3]
    for edge in (pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:]):
        assert edge.min() == 1

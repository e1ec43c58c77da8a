"""Runs drawn and compared: the picture of `plot`; the tables, the picture and the page of `compare`."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.recipe import load_train_recipe
from trainer.results.comparison import compare_runs
from trainer.results.picture import draw_run, draw_runs, smooth
from trainer.results.runs import read_run, read_runs

STEPS = 24
"""Steps of the recipe of `recipe_file`."""
MakeRun = Callable[..., Path]


def make_lines(
    steps: int, level: float, *, scores: dict[str, Any] | None = None, size: int = 256, **changes: Any
) -> list[dict[str, Any]]:
    """Return the metrics of a run that is validated at every eighth step."""
    lines: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        figures = {"tokens": step * size, "loss": level + 1 / step, "lr": 1e-3, "tokens_per_s": 128.0}
        lines.append({"step": step, **figures, "seconds": step * 2.0, "usd": step * 0.5})
        if step % 8 == 0:
            losses = {"val_tokens": 1000, "val_loss": level + 2 / step, "val_bits_per_byte": level / 2}
            found = {} if scores is None else {"scores": scores}
            lines.append({"step": step, **losses, **found, "seconds": step * 2.0 + 1, "usd": step * 0.5, **changes})
    return lines


@pytest.fixture
def make_run(tmp_path, recipe_file) -> MakeRun:
    """Return the function that writes the files of a run: its recipe, metrics, set and tokenizer."""

    def make(
        name: str,
        *overrides: str,
        steps: int = STEPS,
        level: float = 3.0,
        tokenizer: str = "{}",
        sha: str = "a",
        **of: Any,
    ) -> Path:
        run = tmp_path / name
        run.mkdir(parents=True)
        (run / "recipe.json").write_text(load_train_recipe(recipe_file, list(overrides)).model_dump_json())
        lines = make_lines(steps, level, **of)
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "run.json").write_text(json.dumps({"shards": f"/sets/{sha}", "manifest_sha256": sha * 64}))
        (run / "tokenizer.json").write_text(tokenizer)
        return run

    return make


def rows_of(runs: list[Path], score: str) -> list[dict[str, Any]]:
    return [row for row in compare_runs(read_runs(runs))["scores"] if row["score"] == score]


def test_every_score_has_its_difference_from_the_first_run_with_the_errors_of_both(make_run):
    bits = {"web_bpb": {"value": 1.5, "stderr": 0.03}, "arc_acc": {"value": 0.25, "stderr": None}}
    better = {"web_bpb": {"value": 1.25, "stderr": 0.04}, "arc_acc": {"value": 0.5, "stderr": 0.1}}
    runs = read_runs([make_run("a", scores=bits), make_run("b", scores=better, level=2.5)])
    rows = {(row["score"], row["run"]): row for row in compare_runs(runs)["scores"]}
    assert list(dict.fromkeys(score for score, _ in rows)) == ["val_loss", "val_bits_per_byte", "web_bpb", "arc_acc"]
    assert rows["val_loss", "a"]["value"] == 3 + 2 / STEPS
    assert rows["val_loss", "b"]["difference"] == pytest.approx(-0.5)
    assert rows["val_loss", "b"]["difference_stderr"] is None
    assert [rows["web_bpb", "b"][key] for key in ("value", "stderr", "at_step")] == [1.25, 0.04, 24]
    assert rows["web_bpb", "b"]["difference_stderr"] == pytest.approx(0.05)
    assert rows["web_bpb", "a"]["difference"] is None
    assert (rows["arc_acc", "b"]["difference"], rows["arc_acc", "b"]["difference_stderr"]) == (0.25, None)


def test_a_score_that_a_run_lacks_is_empty(make_run, trainer):
    runs = [make_run("a", scores={"web_bpb": {"value": 1.5, "stderr": 0.1}}), make_run("b"), make_run("c", steps=4)]
    assert [(row["value"], row["difference"]) for row in rows_of(runs, "web_bpb")] == [
        (1.5, None),
        (None, None),
        (None, None),
    ]
    shown = trainer.run("compare", *runs)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"web_bpb +a +1\.5000 ± 0\.1000 +- +24 *\n +b +- +- +24 *\n +c +- +- +- *\n", shown.stdout)
    assert "c and a have no comparable score" in shown.stdout
    assert "c is at step 4 of 24: it stopped, or is still going" in shown.stdout
    assert "c was never validated" in shown.stdout


def test_validation_of_another_set_is_not_subtracted(make_run, trainer):
    scores = {name: {"value": 9.0, "stderr": 0.1} for name in ("web_bpb",)}
    runs = [make_run("a", scores=scores), make_run("b", tokenizer='{"other": 1}', sha="b", scores=scores)]
    _, other = rows_of(runs, "val_loss")
    assert (other["difference"], other["why_no_difference"]) == (None, "other text")
    assert rows_of(runs, "web_bpb")[1]["difference"] == 0.0
    shown = trainer.run("compare", *runs).stdout
    assert "other text: other documents, another number of tokens, or the validation split of another set" in shown
    assert re.search(r"shard set +/sets/a \(aaaaaaaaaaaa\) +/sets/b \(bbbbbbbbbbbb\)", shown)
    assert re.search(r"\n *tokenizer +44136fa355b3 ", shown)  # the SHA-256 of `{}`


@pytest.mark.parametrize(
    ("steps", "size", "at", "note"),
    [
        (16, 256, [16, 16], "a is compared at step 16, and not 24: the last after as many tokens"),
        (8, 512, [16, 8], "a is compared at step 16, and not 24"),
        (24, 300, [], "b is compared at step (none), and not 24"),
    ],
)
def test_runs_are_compared_after_as_many_tokens(make_run, steps, size, at, note):
    found = compare_runs(read_runs([make_run("a"), make_run("b", steps=steps, size=size, level=2.5)]))
    rows = [row for row in found["scores"] if row["score"] == "val_loss"]
    assert [row["at_step"] for row in rows] == at
    assert [row["value"] for row in rows] == [level + 2 / step for level, step in zip((3, 2.5), at, strict=False)]
    assert any(told.startswith(note) for told in found["notes"])


LR, SURE = "optimizer.lr=0.5", "0.0200 ± 0.0033 than that of a: more than the noise of the scored text"


@pytest.mark.parametrize(
    ("other", "key", "verdict"),
    [
        ([], LR, "0.0200 than that of a: the noise of the scored text is not known; what another seed would"),
        ([2.0, 4.0, 2.9], LR, "0.0200 ± 0.0333 than that of a: within the noise of the scored text, so no"),
        ([1.98, 3.97, 2.98], LR, f"{SURE}; what another seed would do is not known"),
        ([1.98, 3.97, 2.98], "train.seed=5", f"{SURE}; only the seeds differ, so this is chance"),
    ],
)
def test_the_verdict_weighs_the_difference_of_equal_parts(make_run, other, key, verdict):
    runs = [make_run("a", val_loss_by_part=[2.0, 4.0, 3.0]), make_run("b", key, level=2.98, val_loss_by_part=other)]
    compared = compare_runs(read_runs(runs))
    assert compared["verdict"][0].startswith(f"b: at step 24, after 6,144 tokens, val_loss is lower by {verdict}")
    first, second = (row["difference_stderr"] for row in compared["scores"] if row["run"] == "b")
    assert second == pytest.approx(first and first * 1.49 / (2.98 + 2 / STEPS))  # the same in bits per byte


def test_scores_of_other_documents_are_not_subtracted(make_run):
    def make(name: str, **notes: Any) -> Path:
        score = {"web_bpb": {"value": 1.5, "stderr": 0.1}}
        return make_run(name, 'eval.sets=[{name="web", paths=["x"]}]', scores=score, score_notes={"web": notes})

    runs = [make("a", sha256="1"), make("b", sha256="2"), make("c"), make("d", sha256="1", tokens=7)]
    assert [row["why_no_difference"] for row in rows_of(runs, "web_bpb")] == [None, "other text", None, None]


@pytest.mark.parametrize(
    ("missing", "over"), [("", "steps, tokens, time, dollars"), ("tokens|seconds|loss", "steps, dollars")]
)
def test_the_picture_and_the_page_need_nothing_else(missing, over, make_run, trainer, tmp_path):
    score = {"web_bpb": {"value": 1.5, "stderr": 0.1}}
    runs = [make_run("a", scores=score), make_run("b<script>", scores=score)]
    for metrics in (run / "metrics.jsonl" for run in runs):
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


def test_every_number_has_its_curve_and_its_panel_in_words(make_run):
    phases = ", ".join(f"{{name='{name}', until_step={step}}}" for name, step in ENDS.items())
    by_source = {"a": 0.1, "step": 0.14}
    run = make_run("run", "train.steps=90", f"phases=[{phases}]", steps=50, val_loss_by_source=by_source, usd=90)
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


def test_plot_draws_a_run(trainer, make_run):
    run = make_run("run")
    done = trainer.run("plot", run, "--json")
    assert done.returncode == 0, done.stderr
    png, svg = map(Path, json.loads(done.stdout)["plots"])
    assert (png.name, svg.name) == ("metrics.png", "metrics.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
    done = trainer.run("plot", run, "--out", run / "new/plots")
    assert done.stdout.split() == [str(run / "new/plots" / f"metrics.{suffix}") for suffix in ("png", "svg")]

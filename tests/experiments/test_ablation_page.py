"""The page and the picture of an ablation: what is drawn, and that names and documents are data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.html import Html
from tokenmill.experiments.ablation_page import average_score, draw_ablation, render_ablation
from tokenmill.experiments.documents import COUNTED, summarize_record
from trainer.recipe import load_train_recipe
from trainer.results.runs import TrainingRun

HOSTILE = "</table><script>alert(1)</script>\u202e"


def make_row(arm: str, difference: float | None = None, half: float | None = None, unit: str = "bits per byte") -> Any:
    low, high = (None, None) if difference is None or half is None else (difference - half, difference + half)
    row = {"score": "held_out_bpb", "unit": unit, "arm": arm, "values": {}, "mean": 1.5, "spread": 0.1}
    return row | {"difference": difference, "low": low, "high": high, "answer": HOSTILE}


def make_run(*values: float) -> TrainingRun:
    records: list[dict[str, Any]] = [
        {"step": step, "tokens": 100 * step, "scores": {"held_out_bpb": {"value": value, "stderr": 0.1}}}
        for step, value in enumerate(values, 1)
    ]
    return TrainingRun("seed 1", Path("run"), load_train_recipe(Path("demo")), records, None, None, None, 0)


def test_names_and_documents_are_escaped() -> None:
    counts = [{"source": HOSTILE, **dict.fromkeys(COUNTED, 2)}]
    example = {
        "source": HOSTILE,
        "hash": "0" * 32,
        "tokens": 5,
        "file": HOSTILE,
        "row": 1,
        "text": HOSTILE + "\n\udce2",
    }
    record: dict[str, Any] = {"first": "a", "arm": "b", "same_set": False, "other_tokenizer": False, "counts": counts}
    record["examples"] = {"only_first": [example | {"whole": False}], "only_arm": [example | {"whole": True}]}
    mix = {"arm": "a", "source": HOSTILE, "requested": 0.5, "achieved": 0.25, "tokens": 10, "documents": 2, "epochs": 1}
    answer: dict[str, Any] = {
        "name": HOSTILE,
        "scores": [make_row("a"), make_row("b", 0.1, 0.05)],
        "costs": [{"arm": "a", "trainings": 2, "tokens": 10, "hours": 0.5, "dollars": None}],
        "changes": [{"arm": "b", "key": HOSTILE, "value": HOSTILE}],
        "mixes": [mix, mix],
        "documents": [summarize_record(record)],
        "failed": [{"arm": "b", "seed": 1, "why": HOSTILE}],
        "notes": [HOSTILE],
    }
    page = render_ablation(answer, [record], b"<svg/>")
    assert "<script" not in page
    assert "\u202e" not in page
    html = Html(page)  # whole: each element is closed
    assert html.tags["script"] == 0
    assert html.tags["img"] == 1
    assert len([block for block in html.blocks if "<script>alert(1)</script>\\u202e\n\\xe2" in block]) == 2
    assert sum("</table><script>" in cell for row in html.rows for cell in row) == 8  # none is cut off, or left out


def test_the_mean_of_seeds_is_taken_where_all_have_a_score() -> None:
    found = average_score([make_run(3.0, 2.0, 1.0), make_run(1.0, 4.0)], "held_out_bpb")
    assert found.x == [100, 200]
    assert found.y == [2.0, 3.0]
    assert found.stderr == pytest.approx([2**0.5, 2**0.5])
    assert average_score([make_run(3.0)], "held_out_bpb").stderr == [0.0]


def test_each_arm_has_its_curve_and_its_interval() -> None:
    runs = {"a": [make_run(3.0, 2.0), make_run(2.0, 1.0)], "b": [make_run(3.5, 2.5)], "c": []}
    rows = [make_row("a"), make_row("b", -0.2, 0.1), make_row("c")]
    curves, differences = draw_ablation(runs, rows).axes
    # Of a: two thin seeds and the mean; of b: a seed and the mean; of c, whose trainings failed: an empty mean.
    assert [list(line.get_ydata()) for line in curves.lines] == [[3, 2], [2, 1], [2.5, 1.5], [3.5, 2.5], [3.5, 2.5], []]
    interval, mark, zero = differences.lines
    assert list(interval.get_xdata()) == pytest.approx([-0.3, -0.1])
    assert list(mark.get_xdata()) == [-0.2]
    assert list(zero.get_xdata()) == [0, 0]
    assert [label.get_text() for label in differences.get_yticklabels()] == ["b", "c"]
    assert "not known" in [text.get_text() for text in differences.texts]
    assert "better: left" in differences.get_xlabel()


def test_an_ablation_without_a_finished_training_is_drawn() -> None:
    figure = draw_ablation({"a": [], "b": []}, [make_row("a"), make_row("b")])
    figure.canvas.draw()  # type: ignore[attr-defined]
    accuracy = draw_ablation({"a": [], "b": []}, [make_row("a", unit="accuracy"), make_row("b", unit="accuracy")])
    assert "better: right" in accuracy.axes[1].get_xlabel()

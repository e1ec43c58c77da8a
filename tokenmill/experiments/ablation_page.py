"""The files that show an ablation: a page that needs no network, with its picture as PNG and SVG beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenmill.experiments.ablation import Ablation
from tokenmill.experiments.ablation_plot import draw_ablation
from tokenmill.experiments.answer import list_records, show_tables
from trainer.results.comparison_page import render_figure, render_results, write_page
from trainer.results.runs import TrainingRun, read_run


def write_ablation(ablation: Ablation, answer: dict[str, Any]) -> list[Path]:
    """Write ablation.html, ablation.png and ablation.svg to the folder of the ablation, and return their paths.

    Raises:
        OSError: a file cannot be written.
    """
    figure = draw_ablation(read_arms(ablation), answer["scores"])
    page = render_ablation(answer, list_records(ablation), render_figure(figure))
    return write_page(ablation.out / "ablation.html", page, figure)


def read_arms(ablation: Ablation) -> dict[str, list[TrainingRun]]:
    """Return the runs of each arm, named `seed N`, from the results of the trainings; without those that failed."""
    runs: dict[str, list[TrainingRun]] = {arm.name: [] for arm in ablation.arms}
    for training in ablation.trainings:
        if not training.result.failed:
            run = read_run(ablation.results_folder(training))
            runs[training.arm.name].append(replace(run, name=f"seed {training.seed}"))
    return runs


def render_ablation(answer: dict[str, Any], records: Sequence[Mapping[str, Any]], picture: bytes) -> str:
    """Return the page of an ablation.

    Args:
        answer: what the tables say.
        records: of the documents of each arm.
        picture: the SVG of the curves and the differences.
    """
    values = {
        "title": answer["name"],
        "failed": answer["failed"],
        "notes": answer["notes"],
        "records": [record for record in records if record["counts"]],
        "picture": base64.b64encode(picture).decode("ascii"),
    }
    return render_results(Path(__file__).parent / "templates", "ablation", values | show_tables(answer))

"""The files that show an ablation: a page that needs no network, with its picture as PNG and SVG beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shards.report.render import TEMPLATES, make_render_environment, read_style
from tokenmill.experiments.ablation import Ablation
from tokenmill.experiments.ablation_plot import draw_ablation
from tokenmill.experiments.answer import Answer, list_records, show_changes, show_documents, show_mixes, show_scores
from tokenmill.experiments.proxy import ProxyResult
from trainer.results.comparison_page import render_figure, write_page
from trainer.results.runs import TrainingRun, read_run

_OWN_TEMPLATES = Path(__file__).parent / "templates"


def write_ablation(ablation: Ablation, results: Sequence[ProxyResult], answer: Answer) -> list[Path]:
    """Write ablation.html, ablation.png and ablation.svg to the folder of the ablation, and return their paths.

    Raises:
        OSError: a file cannot be written.
    """
    figure = draw_ablation(read_arms(ablation, results), answer.scores)
    page = render_ablation(ablation.config.name, answer, list_records(ablation), render_figure(figure))
    return write_page(ablation.out / "ablation.html", page, figure)


def read_arms(ablation: Ablation, results: Sequence[ProxyResult]) -> dict[str, list[TrainingRun]]:
    """Return the runs of each arm, named `seed N`, from the results of the trainings; without those that failed."""
    runs: dict[str, list[TrainingRun]] = {arm.name: [] for arm in ablation.arms}
    for training, result in zip(ablation.trainings, results, strict=True):
        if not result.failed:
            run = read_run(ablation.results_folder(training))
            runs[training.arm.name].append(replace(run, name=f"seed {training.seed}"))
    return runs


def render_ablation(name: str, answer: Answer, records: Sequence[Mapping[str, Any]], picture: bytes) -> str:
    """Return the page of an ablation.

    Args:
        name: of the ablation.
        answer: what the tables say.
        records: of the documents of each arm.
        picture: the SVG of the curves and the differences.
    """
    values = {
        "title": name,
        "scores": show_scores(answer.scores),
        "costs": answer.costs,
        "changes": show_changes(answer),
        "mixes": show_mixes(answer),
        "failed": answer.failed,
        "notes": answer.notes,
        "documents": show_documents(answer),
        "records": [record for record in records if record["counts"]],
        "picture": base64.b64encode(picture).decode("ascii"),
    }
    style = read_style(TEMPLATES / "style.css", _OWN_TEMPLATES / "ablation.css")
    return make_render_environment(_OWN_TEMPLATES).get_template("ablation.html.jinja").render(values | style)

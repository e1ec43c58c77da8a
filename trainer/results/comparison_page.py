"""The files of a comparison: a picture as PNG and SVG, and a page that has the tables and needs no network."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.report.render import TEMPLATES, make_render_environment, read_style
from shards.stores.files import atomic_open
from trainer.results.comparison import show_tables
from trainer.results.comparison_plot import choose_axes, draw_runs, list_panels
from trainer.results.runs import TrainingRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN_INCHES, PAGE_INCHES = 3.6, 9.0
"""Widths of a column of the picture, and of a picture of the page."""


def write_comparison(runs: Sequence[TrainingRun], comparison: dict[str, Any], out: Path) -> list[Path]:
    """Write compare.html, compare.png and compare.svg to a folder, and return their paths.

    Raises:
        OSError: a file cannot be written.
    """
    panels, axes = list_panels(runs), choose_axes(runs)
    # The picture shows what the page lets its reader choose: all that numbers are drawn over, side by side.
    figure = draw_runs(runs, panels, list(axes.values()), width=1 + COLUMN_INCHES * len(axes))
    pictures = {
        name: render_figure(draw_runs(runs, panels, [against], width=PAGE_INCHES)) for name, against in axes.items()
    }
    names = [run.name for run in runs]
    values: dict[str, Any] = {
        "title": " and ".join(names if len(runs) < 4 else [names[0], f"{len(runs) - 1} more"]),
        "notes": comparison["notes"],
        "pictures": {name: base64.b64encode(picture).decode("ascii") for name, picture in pictures.items()},
    }
    page = render_results(Path(__file__).parent / "templates", "compare", values | show_tables(comparison))
    return write_page(out / "compare.html", page, figure)


def render_results(templates: Path, name: str, values: Mapping[str, Any]) -> str:
    """Return a page of results, by the template and the style sheet of its name in a folder."""
    template = make_render_environment(templates).get_template(f"{name}.html.jinja")
    return template.render({**values, **read_style(TEMPLATES / "style.css", templates / f"{name}.css")})


def write_page(page: Path, content: str, figure: Figure) -> list[Path]:
    """Write a page, and beside it a picture as PNG and SVG, and return the paths of the three files.

    Raises:
        OSError: a file cannot be written.
    """
    contents = {
        page: content.encode(),
        page.with_suffix(".png"): render_figure(figure, "png"),
        page.with_suffix(".svg"): render_figure(figure),
    }
    page.parent.mkdir(parents=True, exist_ok=True)
    for path, written in contents.items():
        with atomic_open(path) as file:
            file.write(written)
    return list(contents)


def render_figure(figure: Figure, suffix: str = "svg") -> bytes:
    """Return a picture as a file, SVG or PNG."""
    file = io.BytesIO()
    figure.savefig(file, format=suffix, dpi=120)
    return file.getvalue()

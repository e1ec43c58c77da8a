"""The files of a comparison of runs: a picture as PNG and SVG, and a page that needs no network.

The picture has each of some numbers over steps, tokens, time or dollars, with a colour for each run.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false
from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.report.render import TEMPLATES, make_render_environment, read_style
from shards.stores.files import atomic_open
from shards.terminal.program import Row
from trainer.results.comparison import show_tables
from trainer.results.curves import (
    BLUE,
    COLOURS,
    ORANGE,
    TOKENIZER_UNIT,
    draw_score,
    draw_steps,
    plot_style,
    read_curve,
    scale_score,
    unit_of,
)
from trainer.results.runs import TrainingRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RUN_COLOURS = (BLUE, ORANGE, *COLOURS[2:])
RUN_STYLES = tuple(itertools.product(("-", "--", ":", "-."), RUN_COLOURS))
"""The style of line and the colour of each run; runs beyond the colours take the next style."""
PANEL_NAMES = {"loss": "training loss", "val_loss": "validation loss", "val_bits_per_byte": "validation"}
"""The words at the axis of a number; a score of an eval set or task has its own name."""

Against = tuple[str, float, str]
"""What numbers are drawn over: its key in metrics.jsonl, how many of its units are one of the axis, the label."""


def choose_axes(runs: Sequence[TrainingRun]) -> dict[str, Against]:
    """Return what the numbers of runs can be drawn over; dollars only if a run has a price."""
    hours = max(run.last("seconds") or 0.0 for run in runs) >= 3600
    axes: dict[str, Against] = {
        "steps": ("step", 1, "steps"),
        "tokens": ("tokens", 1, "tokens"),
        "time": ("seconds", 3600, "hours") if hours else ("seconds", 60, "minutes"),
    }
    if any(run.last("usd") for run in runs):
        axes["dollars"] = ("usd", 1, "US dollars")
    return axes


def list_panels(runs: Sequence[TrainingRun]) -> list[str]:
    """Return the numbers to draw: the training loss, and every score that a run has."""
    return ["loss", *dict.fromkeys(score for run in runs for score in run.scores)]


def draw_runs(runs: Sequence[TrainingRun], panels: Sequence[str], axes: Sequence[Against], *, width: float) -> Figure:
    """Return a figure with a row of panels for each number, and a column for each thing that it is drawn over.

    Args:
        runs: the runs, in the order of their colours.
        panels: the numbers.
        axes: what they are drawn over.
        width: of the figure, in inches.
    """
    from matplotlib.figure import Figure

    with plot_style():
        figure = Figure(figsize=(width, 0.8 + 2.1 * len(panels)), layout="constrained")
        sharing: dict[str, Any] = {"sharex": "col", "sharey": "row", "squeeze": False}
        grid = figure.subplots(len(panels), len(axes), **sharing)
        for (row, panel), (column, against) in itertools.product(enumerate(panels), enumerate(axes)):
            axis = grid[row][column]
            _draw_panel(axis, runs, panel, against)
            if column == 0:
                axis.set_ylabel(_label_panel(panel, runs))
            if row == len(panels) - 1:
                label_axis(axis, against)

        figure.align_ylabels()

        # One legend for all panels, with the lines of the first one that has the run.
        handles = {
            line.get_label(): line for row in grid for line in row[0].lines if not line.get_label().startswith("_")
        }
        names = [run.name for run in runs if run.name in handles]
        figure.legend([handles[name] for name in names], names, loc="outside upper left", ncols=4, frameon=False)
    return figure


def _draw_panel(axis: Axes, runs: Sequence[TrainingRun], panel: str, against: Against) -> None:
    key, scale, _ = against
    for run, (style, colour) in zip(runs, itertools.cycle(RUN_STYLES), strict=False):
        curve = read_curve(run.records, panel, key)
        curve = curve._replace(x=[moment / scale for moment in curve.x])
        if panel == "loss":
            draw_steps(axis, curve, run.name, colour, raw=False, linestyle=style)
        else:
            draw_score(axis, curve, run.name, colour, linestyle=style)
    scale_score(axis, unit_of(panel))
    axis.grid(visible=True, alpha=0.25)


def _label_panel(panel: str, runs: Sequence[TrainingRun]) -> str:
    """Return the words at a panel's axis: its name, its unit, and whether other tokenizers make it incomparable."""
    unit = unit_of(panel)
    other = (
        "\n(of other tokenizers)" if unit == TOKENIZER_UNIT and len({run.tokenizer_sha256 for run in runs}) > 1 else ""
    )
    return f"{PANEL_NAMES.get(panel, panel)}\n{unit}{other}"


def label_axis(axis: Axes, against: Against) -> None:
    """Label the axis that a number is drawn over, from 0."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, StrMethodFormatter

    key, _, label = against
    axis.set_xlabel(label)
    axis.set_xlim(left=0)
    formats = {
        "step": FuncFormatter(lambda step, _: f"{step:,.0f}"),
        "tokens": EngFormatter(sep=" "),
        "seconds": StrMethodFormatter("{x:g}"),
        "usd": StrMethodFormatter("${x:g}"),
    }
    axis.xaxis.set_major_formatter(formats[key])


COLUMN_INCHES = 3.6
"""The width of a column of the picture."""


def write_comparison(
    runs: Sequence[TrainingRun], comparison: Row, out: Path, *, name: str = "compare", shown: Row | None = None
) -> list[Path]:
    """Write NAME.html, NAME.png and NAME.svg to a folder, and return their paths.

    Args:
        runs: the runs.
        comparison: what `compare_runs` says of them.
        out: the folder.
        name: the name of the files, and of the command that wrote them.
        shown: another `title` and `notes`, and tables that come first, `answers` by their titles.

    Raises:
        OSError: a file cannot be written.
    """
    panels, axes = list_panels(runs), choose_axes(runs)
    figure = draw_runs(runs, panels, list(axes.values()), width=1 + COLUMN_INCHES * len(axes))
    names = [run.name for run in runs]
    values: Row = {
        "title": " and ".join(names if len(runs) < 4 else [names[0], f"{len(runs) - 1} more"]),
        "notes": comparison["notes"],
        "over": list(axes),
        "picture": base64.b64encode(render_figure(figure)).decode("ascii"),
    }
    values |= {"command": name, "answers": {}} | show_tables(comparison) | (shown or {})
    page = render_results(Path(__file__).parent / "templates", "compare", values)
    return write_page(out / f"{name}.html", page, figure)


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

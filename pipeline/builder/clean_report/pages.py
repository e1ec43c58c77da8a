"""Write the cleaning pages: what `clean-report` knows, as HTML files that need no network and run no script.

`index.html` has the table of sources and steps. Each source has a page with its histograms, one for each limit that
drops documents with some on either side of it, and one with its near-duplicates; each evaluation set has one with the
copies of its items. A page shows at most 60 documents, each with the beginning of its text: its size does not grow with
the corpus.
The same report gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.builder.clean_report.charts import plot_measure
from pipeline.builder.clean_report.differences import mark_pair
from pipeline.builder.clean_report.wording import describe_others, describe_unread, name_ends
from shards.errors import InputError
from shards.report.chart import Chart
from shards.report.render import NARROW, TEMPLATES, WIDE, make_render_environment, read_style
from shards.stores.files import atomic_open

INDEX = "index.html"
_OWN_TEMPLATES = Path(__file__).parent / "templates"
_MARK = b'<meta name="generator" content="tokenmill clean-report">'
"""In the first bytes of every page; a file without it is neither replaced nor deleted."""
_MARK_WITHIN = 4096


def write_pages(report: dict[str, Any], out: Path) -> list[Path]:
    """Write the pages of a report, the index last; delete pages that an earlier report has left there.

    Args:
        report: what `read_clean_report` returned.
        out: a folder; created if absent.

    Returns:
        The pages, the index first.

    Raises:
        InputError: a file of the name of a page was not written by this command; nothing was changed.
        OSError: a file cannot be written.
    """
    # Render everything before a file is written.
    pages = dict(render_pages(report))
    foreign = [name for name in pages if (out / name).exists() and not _is_ours(out / name)]
    if foreign:
        raise InputError(
            f"{out / foreign[0]}: not written by clean-report, so not replaced. Give another folder, or move the file."
        )
    out.mkdir(parents=True, exist_ok=True)
    # The index is last: it leads to whole pages alone.
    for name in [*(name for name in pages if name != INDEX), INDEX]:
        with atomic_open(out / name) as file:
            file.write(pages[name].encode())
    for path in out.glob("*.html"):
        if path.name not in pages and _is_ours(path):
            path.unlink()
    return [out / INDEX, *(out / name for name in pages if name != INDEX)]


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return _MARK in file.read(_MARK_WITHIN)


def render_pages(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and the content of each page."""
    environment = make_render_environment(_OWN_TEMPLATES)
    style = read_style(TEMPLATES / "style.css", _OWN_TEMPLATES / "clean.css")
    near: dict[str, Any] = report["near_duplicates"] or {"sources": []}
    steps: list[dict[str, Any]] = report["steps"]
    names = {source["name"]: f"{number}-{source['name']}" for number, source in enumerate(steps, 1)}
    copies = {one["name"]: f"test-{number}-{one['name']}.html" for number, one in enumerate(report["evaluations"], 1)}
    shared: dict[str, Any] = {
        "report": report,
        "steps": steps,
        "pages": names,
        "copies": copies,
        "cleaned": {source["name"]: source for source in report["sources"]},
        "near": {source["name"]: source for source in near["sources"]},
        "mark": mark_pair,
        "ends": name_ends(near.get("action", "report")),
        "unread": describe_unread(report["unread"]),
        "others": describe_others,
        "charts": {},
    }
    shared |= style

    def render(template: str, **values: Any) -> str:
        return environment.get_template(template).render(shared | values)

    # The index, then the pages of each source, then those of evaluation sets.
    yield INDEX, render("index.html.jinja")
    for source in steps:
        name, own = names[source["name"]], shared["cleaned"].get(source["name"])
        charts = _draw_charts(own) if own else {}
        yield f"{name}.html", render("source.html.jinja", source=source, own=own, charts=charts)
        for limit in (limit for limit in own["limits"] if limit["every"]["documents"]) if own else ():
            page = f"{name}.{limit['preset']}.{limit['key']}.html"
            yield page, render("limit.html.jinja", source=source, own=own, limit=limit, charts=charts)
        if pairs := shared["near"].get(source["name"]):
            page = f"{name}.near-duplicates.html"
            yield page, render("pairs.html.jinja", source=source, pairs=pairs)
    for one in report["evaluations"]:
        yield copies[one["name"]], render("copies.html.jinja", evaluation=one)


def _draw_charts(source: dict[str, Any]) -> dict[str, dict[str, Chart]]:
    """Return the chart of each measure that has a limit, in both widths."""
    charts: dict[str, dict[str, Chart]] = {}
    for name, histograms in source["measures"].items():
        limits = [limit for limit in source["limits"] if limit["measure"] == name]
        if limits:
            charts[name] = {
                size: plot_measure(name, histograms["read"], histograms["left"], limits, width)
                for size, width in (("wide", WIDE), ("narrow", NARROW))
            }
    return charts

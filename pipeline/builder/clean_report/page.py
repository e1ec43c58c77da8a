"""Write the cleaning page: what `clean-report` knows, as one HTML file that needs no network and runs no script.

It has the table of the terminal, and of each row some documents with the beginning of their text. Its size does not
grow with the corpus. The same report gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shards.errors import InputError
from shards.report.render import TEMPLATES, make_render_environment, read_style
from shards.stores.files import atomic_open

_OWN_TEMPLATES = Path(__file__).parent / "templates"
_MARK = b'<meta name="generator" content="tokenmill clean-report">'
"""In the first bytes of the page; a file without it is not replaced."""
_MARK_WITHIN = 4096


def write_page(report: dict[str, Any], out: Path) -> None:
    """Write the page of a report.

    Args:
        report: what `read_clean_report` returned.
        out: the file, which may be an earlier page.

    Raises:
        InputError: the file was not written by this command.
        OSError: it cannot be written.
    """
    page = render_page(report)
    if out.exists() and (not out.is_file() or _MARK not in out.read_bytes()[:_MARK_WITHIN]):
        raise InputError(f"{out}: not written by clean-report, so not replaced. Give another file, or move this one.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_open(out) as file:
        file.write(page.encode())


def render_page(report: dict[str, Any]) -> str:
    """Return the page of a report."""
    style = read_style(TEMPLATES / "style.css", _OWN_TEMPLATES / "clean.css")
    template = make_render_environment(_OWN_TEMPLATES).get_template("page.html.jinja")
    return template.render({"report": report} | style)

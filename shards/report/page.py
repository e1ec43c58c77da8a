"""What all HTML pages share: templates that escape by default, and style sheets that a page names by their hash.

A page has no script and loads nothing. Its content security policy allows its one style sheet and nothing else, so that
even markup that was not escaped could neither run nor make a request.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import jinja2
from markupsafe import Markup

from shards.report import text
from shards.report.card import public_place, public_reason

WIDE, NARROW = 720.0, 342.0
"""Widths in px that each chart is drawn for: a text column on a desktop, and a phone held upright."""

TEMPLATES = Path(__file__).parent / "templates"


def read_style(*paths: Path) -> dict[str, str]:
    """Return the values `style`, some style sheets as one, and `style_digest`, for the macro `head`."""
    style = "".join(path.read_text(encoding="utf-8") for path in paths)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    return {"style": Markup(style), "style_digest": digest}


def make_environment(*folders: Path) -> jinja2.Environment:
    """Return the environment of the templates in some folders, and in this package's."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, TEMPLATES]),
        autoescape=lambda name: name is None or name.endswith(".html.jinja"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "visible": text.visible,
        "document": text.visible_document,
        "token": text.visible_token,
        "shorten": text.shorten,
        "code": text.code_span,
        "cell": text.code_cell,
        "plain": text.plain_span,
        "public_place": public_place,
        "public_reason": public_reason,
        "sentence": text.sentence,
        "fence": text.fence,
        "literal": text.python_literal,
        "signed": text.signed,
        "signed_percent": text.signed_percent,
        "count": text.count,
        "compact": text.compact,
        "size": text.size,
        "percent": text.percent,
    }
    environment.filters.update(filters)  # pyright: ignore[reportUnknownMemberType]
    return environment

"""Render the page and the card with jinja2 templates, escaped by default. Equal facts give equal bytes.

A page has no script and loads nothing. Its content security policy allows its one style sheet, which it names by its
hash, and nothing else, so that even markup that was not escaped could neither run nor make a request. The
cleaning pages of a build are rendered in the same environment.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from shards.audit.rules import VERDICT_ADVICE, VERDICT_WORDS
from shards.report import markdown, numbers, visible_text
from shards.report.audited import rows_of
from shards.report.card import card_header, public_place, public_reason, python_literal, yaml_header
from shards.report.chart import Chart
from shards.report.facts import SetFacts
from shards.report.other_tokenizer import COMPARED_DOCUMENTS, TokenizerComparison
from shards.report.plots import (
    MAX_ROWS,
    plot_bytes_per_token,
    plot_id_frequencies,
    plot_lengths,
    plot_mix,
    plot_shards,
)
from shards.report.shown_documents import ShownDocument
from shards.report.vocabulary import VocabularyFacts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

WIDE, NARROW = 720.0, 342.0
"""Widths in px that each chart is drawn for: a text column on a desktop, and a phone held upright."""

TEMPLATES = Path(__file__).parent / "templates"

MAX_RECIPE_CHARACTERS = 30_000
MAX_SHARD_ROWS = 60
MAX_FINDINGS = 8


@dataclass(frozen=True)
class PageContents:
    """Everything a report shows.

    Attributes:
        facts: the set, from its manifest and recipe.
        vocabulary: its ids, from the audit's counts.
        audit: audit.json.
        lengths: documents by source and length, int64 `(sources, histogram.BINS)`.
        samples: documents to show, by source.
        comparison: another tokenizer on the same text, if there is one.
    """

    facts: SetFacts
    vocabulary: VocabularyFacts
    audit: dict[str, Any]
    lengths: npt.NDArray[np.int64]
    samples: dict[str, list[ShownDocument]]
    comparison: TokenizerComparison | None

    def rows(self, check: str) -> list[dict[str, Any]]:
        """Return the audit's rows of a check."""
        return rows_of(self.audit, check)

    @property
    def bytes_per_token(self) -> dict[str, float]:
        """Bytes of text per training token of each source; EOS counts as a token without text."""
        return {row["source"]: row["bytes"] / row["tokens"] for row in self.rows("bytes_per_token")}

    @property
    def text_bytes(self) -> int:
        """Bytes of text in training."""
        return sum(row["bytes"] for row in self.rows("bytes_per_token"))

    @property
    def whole_bytes_per_token(self) -> float:
        """Bytes of text per training token over the set."""
        return self.text_bytes / max(1, sum(row["tokens"] for row in self.rows("bytes_per_token")))


def render_page(contents: PageContents) -> str:
    """Return the page: one HTML file that needs nothing else."""
    values = _values(contents) | read_style(TEMPLATES / "style.css") | {"charts": _draw_charts(contents)}
    return make_render_environment().get_template("page.html.jinja").render(values)


def render_card(contents: PageContents) -> str:
    """Return the data card: Markdown under the header that the Hub reads."""
    header = yaml_header(card_header(contents.facts))
    return header + make_render_environment().get_template("card.md.jinja").render(_values(contents))


def _draw_charts(contents: PageContents) -> dict[str, dict[str, Chart]]:
    """Return each chart in both widths: `charts["mix"]["wide"]`."""
    charts: dict[str, dict[str, Chart]] = {}
    medians = {row["source"]: row["p50"] for row in contents.rows("lengths")}
    for name, width in (("wide", WIDE), ("narrow", NARROW)):
        drawn = {
            "mix": plot_mix(contents.facts, width),
            "lengths": plot_lengths(contents.facts, contents.lengths, medians, width),
            "ranks": plot_id_frequencies(contents.vocabulary, width),
            "bytes": plot_bytes_per_token(contents.bytes_per_token, contents.comparison, width),
            "shards": plot_shards(contents.facts, width),
        }
        for chart, picture in drawn.items():
            charts.setdefault(chart, {})[name] = picture
    return charts


def _values(contents: PageContents) -> dict[str, Any]:
    return {
        "contents": contents,
        "facts": contents.facts,
        "vocabulary": contents.vocabulary,
        "audit": contents.audit,
        "compared_documents": COMPARED_DOCUMENTS,
        "verdicts": Counter(check["verdict"] for check in contents.audit["checks"]),
        "verdict_words": VERDICT_WORDS,
        "verdict_advice": VERDICT_ADVICE,
        "train": contents.facts.splits.get("train"),
        "val": contents.facts.splits.get("val"),
        "by_source": {row["source"]: row for row in contents.rows("lengths")},
        "most_recipe": MAX_RECIPE_CHARACTERS,
        "most_shards": MAX_SHARD_ROWS,
        "most_findings": MAX_FINDINGS,
        "most_drawn": MAX_ROWS,
    }


def read_style(*paths: Path) -> dict[str, str]:
    """Return the values `style`, some style sheets as one, and `style_digest`, for the macro `head`."""
    style = "".join(path.read_text(encoding="utf-8") for path in paths)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    return {"style": Markup(style), "style_digest": digest}


def make_render_environment(*folders: Path) -> jinja2.Environment:
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
        "visible": visible_text.visible,
        "document": visible_text.visible_document,
        "token": visible_text.visible_token,
        "shorten": visible_text.shorten,
        "code": markdown.code_span,
        "cell": markdown.code_cell,
        "plain": markdown.plain_span,
        "public_place": public_place,
        "public_reason": public_reason,
        "sentence": markdown.sentence,
        "fence": markdown.fence,
        "literal": python_literal,
        "signed": numbers.signed,
        "signed_percent": numbers.signed_percent,
        "count": numbers.count,
        "compact": numbers.compact,
        "size": numbers.size,
        "percent": numbers.percent,
    }
    environment.filters.update(filters)  # pyright: ignore[reportUnknownMemberType]
    return environment

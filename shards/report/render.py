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
from typing import Any

import jinja2
from markupsafe import Markup

from shards.audit.rules import VERDICT_ADVICE, VERDICT_WORDS
from shards.format.manifest import Manifest
from shards.report import card, visible_text
from shards.report.audited import rows_of
from shards.report.facts import SourceFacts
from shards.report.plots import MAX_ROWS, Chart, plot_id_frequencies, plot_lengths
from shards.report.shown_documents import ShownDocument
from shards.terminal.amounts import compact, format_size
from shards.terminal.display import format_value

WIDE, NARROW = 720.0, 342.0
"""Widths in px that each chart is drawn for: a text column on a desktop, and a phone held upright."""

TEMPLATES = Path(__file__).parent / "templates"

_LIMITS = {"most_recipe": 30_000, "most_shards": 60, "most_findings": 8, "most_drawn": MAX_ROWS}
"""How many characters of the recipe, shards, findings of a check and sources a page shows."""


@dataclass(frozen=True)
class Report:
    """A report: everything it shows.

    Attributes:
        out: its folder.
        manifest: the set's manifest.
        manifest_sha256: the digest of the manifest.
        recipe_text: the set's recipe.
        bytes: bytes of all its files, the manifest included.
        sources: its sources, from manifest and recipe.
        vocabulary: its ids, from the audit's counts.
        audit: audit.json.
        samples: documents to show, by source.
    """

    out: Path
    manifest: Manifest
    manifest_sha256: str
    recipe_text: str
    bytes: int
    sources: list[SourceFacts]
    vocabulary: dict[str, Any]
    audit: dict[str, Any]
    samples: dict[str, list[ShownDocument]]

    @property
    def tokens(self) -> int:
        """Tokens of both splits."""
        return sum(shard.tokens for shard in self.manifest.shards)

    @property
    def documents(self) -> int:
        """Documents of both splits."""
        return sum(shard.documents for shard in self.manifest.shards)

    @property
    def tokens_bytes(self) -> int:
        """Bytes of the compressed tokens."""
        return sum(shard.files.tokens.bytes for shard in self.manifest.shards)

    @property
    def eos(self) -> str:
        """The text of the token that ends every document."""
        tokenizer = self.manifest.tokenizer
        return next((text for text, token in tokenizer.special_tokens.items() if token == tokenizer.eos_id), "")

    @property
    def rebuildable(self) -> bool:
        """Whether the recipe says of every source where a build reads it."""
        return bool(self.sources) and all(source.places for source in self.sources)

    @property
    def by_source(self) -> dict[str, dict[str, Any]]:
        """The audit's findings on lengths of documents, by source."""
        return {row["source"]: row for row in rows_of(self.audit, "lengths")}

    @property
    def bytes_per_token(self) -> dict[str, float]:
        """Bytes of text per training token of each source; EOS counts as a token without text."""
        return {row["source"]: row["bytes"] / row["tokens"] for row in rows_of(self.audit, "bytes_per_token")}

    @property
    def text_bytes(self) -> int:
        """Bytes of text in training."""
        return sum(row["bytes"] for row in rows_of(self.audit, "bytes_per_token"))

    @property
    def whole_bytes_per_token(self) -> float:
        """Bytes of text per training token over the set."""
        return self.text_bytes / max(1, sum(row["tokens"] for row in rows_of(self.audit, "bytes_per_token")))


def render_page(report: Report) -> str:
    """Return the page: one HTML file that needs nothing else."""
    values = _values(report) | read_style(TEMPLATES / "style.css") | {"charts": _draw_charts(report)}
    return make_render_environment().get_template("page.html.jinja").render(values)


def render_card(report: Report) -> str:
    """Return the data card: Markdown under the header that the Hub reads."""
    header = card.card_header(report.manifest, report.sources)
    return header + make_render_environment().get_template("card.md.jinja").render(_values(report))


def _draw_charts(report: Report) -> dict[str, dict[str, Chart]]:
    """Return each chart in both widths: `charts["mix"]["wide"]`."""
    charts: dict[str, dict[str, Chart]] = {}
    # Each picture is drawn twice: text in a scaled picture could not be read on a phone.
    for name, width in (("wide", WIDE), ("narrow", NARROW)):
        drawn = {
            "lengths": plot_lengths(list(report.by_source.values()), width),
            "ranks": plot_id_frequencies(report.vocabulary, width),
        }
        for chart, picture in drawn.items():
            charts.setdefault(chart, {})[name] = picture
    return charts


def _values(report: Report) -> dict[str, Any]:
    manifest = report.manifest
    return _LIMITS | {
        "report": report,
        "manifest": manifest,
        "vocabulary": report.vocabulary,
        "audit": report.audit,
        "verdicts": Counter(check["verdict"] for check in report.audit["checks"]),
        "verdict_words": VERDICT_WORDS,
        "verdict_advice": VERDICT_ADVICE,
        "train": manifest.splits.get("train"),
        "val": manifest.splits.get("val"),
        "split_shards": Counter(shard.split for shard in manifest.shards),
        "phase_shards": Counter(shard.phase for shard in manifest.shards),
    }


def read_style(*paths: Path) -> dict[str, str]:
    """Return the values `style`, some style sheets as one, and `style_digest`, for the macro `head`."""
    style = "".join(path.read_text(encoding="utf-8") for path in paths)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    return {"style": Markup(style), "style_digest": digest}


def make_render_environment(*folders: Path) -> jinja2.Environment:
    """Return the environment of the templates in some folders, and in this package's."""
    # Escaped unless the name says Markdown, which has escapes of its own.
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
        "code": visible_text.code_span,
        "cell": visible_text.code_cell,
        "plain": visible_text.plain_span,
        "sentence": visible_text.sentence,
        "fence": visible_text.fence,
        "public_place": card.public_place,
        "public_reason": card.public_reason,
        "literal": ascii,
        "compact": compact,
        "shown": format_value,
        "size": format_size,
        "count": "{:,.0f}".format,
        "percent": _percent,
        "signed": _signed,
    }
    environment.filters.update(filters)  # pyright: ignore[reportUnknownMemberType]
    return environment


def _percent(share: float, digits: int = 2) -> str:
    return f"{share:.{digits}%}"


def _signed(number: int) -> str:
    return f"{number:+,}" if number else "0"

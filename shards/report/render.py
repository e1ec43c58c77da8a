"""Render the page and the card of a report with jinja2 templates, escaped by default. Equal facts give equal bytes.

A page has no script and loads nothing. Its content security policy allows its one style sheet, which it names by its
hash, and nothing else, so that even markup that was not escaped could neither run nor make a request. The
cleaning pages of a build are rendered in the same environment.

The header of a card, which the Hub reads, has only facts of the set: no language is guessed, and a licence is named
only if the recipe names one for every source. The recipe is a JSON object that others may have written: a value of an
unexpected type is left out, never guessed.

Foreign text (names, tokens, documents) is data: jinja2 escapes it on the page, its controls, right-to-left overrides
and lone surrogates are spelt out, as `display.printable` does on a terminal. In the Markdown of a card it is in code
spans, in fences, or has every character of syntax escaped.
"""

import base64
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from shards.audit.figures import COARSE_EDGES
from shards.audit.rules import VERDICT_ADVICE, VERDICT_WORDS
from shards.config import list_of, table_of
from shards.format.manifest import BLOCK_LIST_REASON, Manifest
from shards.terminal.amounts import compact, format_size
from shards.terminal.display import JsonObject, Table, format_value, printable

TEMPLATES = Path(__file__).parent / "templates"


def check_replaceable(file: Path, mark: bytes) -> None:
    """Refuse to write a report over a file that none wrote: one without a mark.

    Raises:
        FileExistsError: it is such a file.
    """
    if file.exists() and not (file.is_file() and mark in file.read_bytes()):
        raise FileExistsError(
            f"{file}: no report wrote this file, so it is not overwritten. Give another place, or move it."
        )


@dataclass(frozen=True)
class Report:
    """A report: everything it shows.

    Attributes:
        out: its folder.
        manifest: the set's manifest.
        manifest_sha256: the digest of the manifest.
        recipe_text: what to show of the set's recipe.
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
    sources: Table
    vocabulary: JsonObject
    audit: JsonObject
    samples: dict[str, Table]

    @property
    def tokens_bytes(self) -> int:
        """Bytes of the compressed tokens."""
        return sum(shard.files.tokens.bytes for shard in self.manifest.shards)

    @property
    def eos(self) -> str:
        """The text of the token that ends every document."""
        tokenizer = self.manifest.tokenizer
        return next(text for text, token in tokenizer.special_tokens.items() if token == tokenizer.eos_id)

    @property
    def by_source(self) -> dict[str, JsonObject]:
        """The audit's findings on lengths of documents, by source."""
        return {row["source"]: row for row in rows_of(self.audit, "lengths")}

    @property
    def bytes_per_token(self) -> dict[str, float]:
        """Bytes of text per training token of each source; EOS counts as one without text."""
        return {row["source"]: row["bytes"] / row["tokens"] for row in rows_of(self.audit, "bytes_per_token")}

    @property
    def text_bytes(self) -> int:
        """Bytes of text in training."""
        return sum(row["bytes"] for row in rows_of(self.audit, "bytes_per_token"))

    @property
    def whole_bytes_per_token(self) -> float:
        """Bytes of text per training token over the set."""
        return self.text_bytes / max(1, self.manifest.splits["train"].tokens)


def rows_of(found: JsonObject, check: str) -> Table:
    """Return the findings of a check to render, from the set's audit.json, worst first; empty without the check."""
    nothing: Table = []
    return next((entry["rows"] for entry in found["checks"] if entry["name"] == check), nothing)


def render_page(report: Report) -> str:
    """Return the page of a set's report: one HTML file that needs nothing else."""
    values = _values(report) | read_style(TEMPLATES / "style.css")
    return make_render_environment().get_template("page.html.jinja").render(values)


def render_card(report: Report) -> str:
    """Return the dataset card of a report: Markdown under the header that the Hub reads."""
    header = card_header(report.manifest, report.sources)
    return header + make_render_environment().get_template("card.md.jinja").render(_values(report))


def _length_bars(rows: dict[str, JsonObject]) -> dict[str, list[float]]:
    """Return the heights, 0 to 10, of rendered bars for each source's document lengths, over the bins in use."""
    edges: list[int] = COARSE_EDGES.tolist()
    held = {name: {int(low): count for low, count in row["histogram"].items()} for name, row in rows.items()}
    used = [low for counts in held.values() for low in counts] or edges[:1]
    spans = [(low, high) for low, high in itertools.pairwise(edges) if min(used) <= low <= max(used)]
    bars: dict[str, list[float]] = {}
    for name, counts in held.items():
        # Bins are not equally wide, so their areas are compared, not their heights.
        density = [counts.get(low, 0) / math.log2(high / low) for low, high in spans]
        bars[name] = [round(10 * value / max(*density, 1e-9), 1) for value in density]
    return bars


def _values(report: Report) -> JsonObject:
    manifest = report.manifest
    return {
        "report": report,
        "manifest": manifest,
        "bars": _length_bars(report.by_source),
        "verdicts": Counter(check["verdict"] for check in report.audit["checks"]),
        "verdict_words": VERDICT_WORDS,
        "verdict_advice": VERDICT_ADVICE,
        "train": manifest.splits["train"],
        "val": manifest.splits.get("val"),
        "split_shards": Counter(shard.split for shard in manifest.shards),
        "phase_shards": Counter(shard.phase for shard in manifest.shards),
    }


def read_style(*paths: Path) -> dict[str, str]:
    """Return for a page `style`, some style sheets as one, and `style_digest`, for the macro `head`."""
    style = "".join(path.read_text(encoding="utf-8") for path in paths)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    return {"style": Markup(style), "style_digest": digest}


def make_render_environment(*folders: Path) -> jinja2.Environment:
    """Return the environment of the templates in some folders, and in this package's."""
    # Escaped unless the name says Markdown, which has escapes of its own.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, TEMPLATES]),
        autoescape=jinja2.select_autoescape(["html.jinja"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "visible": visible,
        "document": partial(visible, keep=KEPT_IN_DOCUMENTS),
        "token": visible_token,
        "shorten": shorten,
        "code": code_span,
        "cell": code_cell,
        "sentence": sentence,
        "fence": fence,
        "public_place": public_place,
        "public_reason": public_reason,
        "literal": ascii,
        "compact": compact,
        "shown": format_value,
        "size": format_size,
        "count": "{:,.0f}".format,
        "percent": _percent,
        "signed": "{:+,}".format,
    }
    environment.filters.update(filters)  # pyright: ignore[reportUnknownMemberType]
    return environment


def _percent(share: float, digits: int = 2) -> str:
    return f"{share:.{digits}%}"


# fmt: off
HUB_LICENSES = frozenset((
    "apache-2.0", "bsd-3-clause", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "cc-by-sa-3.0",
    "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-2.0", "gpl-3.0", "mit", "odc-by", "pddl", "unlicense",
))
# fmt: on
"""Identifiers of licences that the Hub accepts and corpora have; it refuses unknown ones, so any other is named."""


def card_header(manifest: Manifest, sources: Sequence[JsonObject]) -> str:
    """Return the header of the rendered card between its two lines; ASCII only, so that every character is exact.

    Rows, for the Hub, are documents.
    """
    # The Hub calls validation by its whole name.
    names = {"train": "train", "val": "validation"}
    files = [{"split": names[split], "path": f"{split}-*.docs.parquet"} for split in manifest.splits]
    repositories = list(dict.fromkeys(source["repository"] for source in sources if source["repository"]))
    # The category of the size, in the Hub's words.
    digits = min(len(str(sum(shard.documents for shard in manifest.shards))), 12)
    low, high = (f"{10 ** (power % 3)}{' KMBT'[power // 3]}" for power in (digits - 1, digits))
    keys: JsonObject = {
        "pretty_name": manifest.name,
        **_license([source["license"] for source in sources]),
        "task_categories": ["text-generation"],
        "tags": ["tokenmill", "tokenized", "pretraining"],
        "size_categories": ["n<1K" if digits < 4 else f"{low}<n<{high}"],
        **({"source_datasets": repositories} if repositories else {}),
        "configs": [{"config_name": "documents", "data_files": files}],
    }
    body = yaml.safe_dump(keys, sort_keys=False, allow_unicode=False, default_flow_style=False, width=1 << 30)
    return f"---\n{body}---\n"


def public_place(place: str) -> str:
    """Return a place of the recipe as the card is rendered with it; for a local path, only the file's name.

    The folders of an absolute path, a home path or a parent path may name a person or a machine. Paths below the
    working directory stay as they are, and so do URLs.
    """
    scheme, is_url, path = place.rpartition("://")
    if is_url and scheme not in ("file", "local") and "::" not in place:
        return place
    parts = PurePosixPath(path).parts
    # Folders outside the working directory may name a person or a machine.
    leads_out = is_url or path.startswith(("/", "~")) or ".." in parts
    return f"…/{parts[-1]}" if leads_out and parts else place


def public_reason(reason: str) -> str:
    """Return the reason for dropped documents as the card is rendered with it, a block list by `public_place`."""
    if not reason.startswith(BLOCK_LIST_REASON):
        return reason
    return BLOCK_LIST_REASON + public_place(reason.removeprefix(BLOCK_LIST_REASON))


def _license(stated: list[str | None]) -> JsonObject:
    names = list(dict.fromkeys(name for name in stated if name is not None))
    if not names or None in stated:
        return {"license": "unknown"}
    known = [name.lower() for name in names]
    if all(name in HUB_LICENSES for name in known):
        return {"license": known[0] if len(known) == 1 else known}
    return {"license": "other", "license_name": ", ".join(names)}


def describe_sources(manifest: Manifest, recipe_text: str) -> Table:
    """Return the facts of each source to render: what the manifest counts, and what the recipe states.

    Returns:
        name, entry: its name, and what the build found.
        share: its row of the mix.
        train, val: tokens (EOS included) and documents in each split.
        kind: its kind in the recipe; empty if the recipe states none.
        repository: its repository on the Hub, if it is from there.
        places: paths, or the repository with its configuration and split, as the recipe states them.
        license: as the recipe states it.
    """
    try:
        recipe = table_of(json.loads(recipe_text))
    except (ValueError, RecursionError):  # the format requires JSON only because readers of sources need it
        recipe = {}
    tables = map(table_of, list_of(recipe.get("sources")))
    stated = {name: table for table in tables if (name := _text(table.get("name")))}
    mix = {row.source: row for row in manifest.mix}
    facts: Table = []
    for entry in manifest.sources:
        own = stated.get(entry.name, {})
        facts.append(
            {
                "name": entry.name,
                "entry": entry,
                "share": mix[entry.name],
                "train": manifest.count("train", entry.name),
                "val": manifest.count("val", entry.name),
                "kind": _text(own.get("kind")) or "",
                "repository": _text(own.get("repo")),
                "places": _places(own),
                "license": _text(own.get("license")),
            }
        )
    return facts


def _places(source: JsonObject) -> list[str]:
    places = [path for path in list_of(source.get("paths")) if isinstance(path, str)]
    if repo := _text(source.get("repo")):
        parts = [part for key in ("config", "split") if (part := _text(source.get(key)))]
        places.append(f"{repo} ({', '.join(parts)})" if parts else repo)
    return places


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


MAX_TOKEN_CHARACTERS = 48

KEPT_IN_DOCUMENTS = "\n\t\u200c\u200d"
"""Line breaks, and the joiners that emoji and several scripts need; they only join the characters next to them."""


def visible(text: str, keep: str = "") -> Markup:
    """Return a text for the page: invisible characters are spelt out and marked, unless they are among `keep`."""
    if text.isascii() and text.isprintable():
        return Markup.escape(text)
    # Runs of characters that are spelt out, and runs that are not, in turn.
    parts: list[Markup] = []
    for hidden, run in groupby(text, key=lambda character: printable(character, keep=keep) != character):
        joined = "".join(run)
        parts.append(
            Markup('<i class="esc">{}</i>').format(printable(joined, keep=keep)) if hidden else Markup.escape(joined)
        )
    return Markup("").join(parts)


def visible_token(text: str) -> Markup:
    """Return a token's text for the page: spaces are shown as dots, and a long text is visibly shortened."""
    length, shown = len(text), text[:MAX_TOKEN_CHARACTERS]
    runs: list[str] = re.findall(" +|[^ ]+", shown)
    parts = [Markup('<i class="esc">·</i>') * len(run) if run[0] == " " else visible(run) for run in runs]
    cut = Markup(' <i class="esc">… {} characters</i>').format(f"{length:,}") if length > len(shown) else ""
    return Markup("").join(parts) + cut


def shorten(text: str, characters: int) -> str:
    """Return foreign text of at most this many characters for a page; an ellipsis replaces a longer one's middle."""
    if len(text) <= characters:
        return text
    # The beginning of a name says more than its end.
    head = (characters - 1) * 2 // 3
    tail = characters - 1 - head
    return f"{text[:head]}…{text[len(text) - tail :]}"


def code_span(text: str) -> str:
    """Return foreign text as a Markdown code span, in which no syntax, HTML or link is recognized."""
    text = printable(text) or " "
    ticks = "`" * (_longest_ticks(text) + 1)
    pad = " " if text.strip(" ") and (text[0] in "` " or text[-1] in "` ") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def code_cell(text: str) -> str:
    """Return foreign text as a code span in a table: rows are split at | before all else is parsed, even in code."""
    return code_span(text).replace("|", "\\|")


def sentence(text: str) -> str:
    """Return prose that may quote foreign names for Markdown, with everything that could be syntax escaped."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~$&@:.])", r"\\\1", printable(text))


def fence(text: str, language: str = "") -> str:
    """Return foreign text as a Markdown code block, its fence longer than any run of backticks in the text."""
    shown = printable(text, keep=KEPT_IN_DOCUMENTS)
    ticks = "`" * max(3, _longest_ticks(shown) + 1)
    return f"{ticks}{language}\n{shown}\n{ticks}"

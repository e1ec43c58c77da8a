"""Make a report of a set: `index.html`, a page that needs no network, and `README.md`, a data card for the Hub.

They are written next to the set (`DIR.report`), whose own folder holds only the files in its manifest. Equal sets with
equal audits give equal bytes: they contain no time and no host. The card is
published, so it shows only the file's name of a local path that is absolute or leads to a parent folder.

Runs the audit if none is stored for this set; the rest takes a few seconds. Memory does not grow with the set.

A report judges nothing that the audit does not judge, and uploads nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shards.format.manifest import MANIFEST_FILE
from shards.report.audited import describe_vocabulary, find_or_audit
from shards.report.render import Report, describe_sources, render_card, render_page
from shards.report.shown_documents import draw_shown_places, read_shown_document
from shards.stores.files import atomic_open
from shards.stores.open import AnyPath, open_store
from shards.stores.store import FolderStore, check_outside, folder_beside
from shards.terminal.reporter import Progress, no_progress
from shards.validation.files import require_whole

PAGE_FILE, CARD_FILE = "index.html", "README.md"
_MARKS = {PAGE_FILE: b": a token set</title>", CARD_FILE: b"| manifest, SHA-256 | `"}
"""Text in every page and card that a report wrote. A file of that name without this text is not replaced."""

SAMPLES = 2
"""Maximum documents shown of each source."""


def report_to_dict(report: Report) -> dict[str, Any]:
    """Return the JSON object of a report: every fact of the page but the manifest's, the samples' texts and curves."""
    stated = ("name", "kind", "places", "license")
    return {
        "name": report.manifest.name,
        "manifest_sha256": report.manifest_sha256,
        "tokens": report.tokens,
        "documents": report.documents,
        "bytes": report.bytes,
        "sources": [{name: getattr(source, name) for name in stated} for source in report.sources],
        "out": str(report.out),
        "files": [PAGE_FILE, CARD_FILE],
        "verdict": report.audit["verdict"],
        "checks": {check["name"]: check["verdict"] for check in report.audit["checks"]},
        "bytes_per_token": {"set": report.whole_bytes_per_token, "sources": report.bytes_per_token},
        "lengths": report.by_source,
        "longest_entries": report.vocabulary["longest"],
        "rarest_entries": report.vocabulary["rarest"],
        "samples": {name: [sample.place.to_dict() for sample in samples] for name, samples in report.samples.items()},
    }


def write_report(
    path: AnyPath,
    *,
    out: Path | None = None,
    audit: Path | None = None,
    workers: int = 1,
    progress: Progress = no_progress,
) -> Report:
    """Write the page and the card of a set.

    Args:
        path: the set's folder, or its address.
        out: the folder to write to, `DIR.report` next to the set's folder when None; created if absent. An existing
            report is replaced; other files of these names are not.
        audit: the folder of the set's audit; when None, `DIR.audit` next to the set's folder, or `OUT.audit` for a set
            at an address.
        workers: number of processes; the report does not depend on it.
        progress: called with tokens done and tokens in all.

    Raises:
        ShardSetError: the set is not whole.
        InputError: the set's tokenizer is not byte-level, the other file is not a tokenizer, or `out` is in the set's
            folder.
        FileExistsError: `out` holds an `index.html` or `README.md` that no report wrote.
        OSError: a file cannot be read or written.
    """
    store = open_store(path)
    out = folder_beside(store, "report") if out is None else out
    check_outside(out, store)
    _check_replaceable(out)
    # Beside the set, or beside the report of a set at an address.
    if audit is None:
        audit = folder_beside(store if store.folder is not None else FolderStore(out), "audit")
    shard_set = require_whole(store)
    found = find_or_audit(shard_set, audit, workers=workers, progress=progress)
    samples = {
        name: [read_shown_document(shard_set.shard(place.shard), place, shard_set.vocabulary) for place in places]
        for name, places in draw_shown_places(shard_set, SAMPLES).items()
    }
    manifest = shard_set.manifest
    recipe_text = store.read(manifest.recipe.file).decode("utf-8", "backslashreplace")
    # The manifest lists the files of shards; the other three are asked for their sizes.
    others = (MANIFEST_FILE, manifest.recipe.file, manifest.tokenizer.file)
    report = Report(
        out,
        manifest,
        shard_set.manifest_sha256,
        recipe_text,
        sum(file.bytes for file in manifest.files) + sum(map(store.size, others)),
        describe_sources(manifest, recipe_text),
        describe_vocabulary(found, audit),
        found,
        samples,
    )
    # Both are rendered before either is written.
    rendered = {CARD_FILE: render_card(report), PAGE_FILE: render_page(report)}
    out.mkdir(parents=True, exist_ok=True)
    for name, text in rendered.items():
        with atomic_open(out / name) as file:
            file.write(text.encode())
    return report


def _check_replaceable(out: Path) -> None:
    """Refuse a folder with a page or a card that no report wrote.

    Raises:
        FileExistsError: the folder has such a file.
    """
    for name, mark in _MARKS.items():
        if (out / name).exists() and mark not in (out / name).read_bytes():
            raise FileExistsError(
                f"{out / name}: not written by a report, so not replaced. Give another --out, or move it."
            )

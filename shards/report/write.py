"""Make a report of a set: `index.html`, a page that needs no network, and `README.md`, a dataset card for the Hub.

They are written next to the set (`DIR.report`), whose own folder holds only the files in its manifest. Equal sets with
equal audits give equal bytes: they contain no time and no host. The card is
published, so it shows only the file's name of a local path that is absolute or leads to a parent folder.

The stored audit is used if it is of this very set by the current rules, else a new one is made; the rest takes a few
seconds. Memory does not grow with the set.

A report judges nothing that the audit does not judge, and uploads nothing.
"""

# pyright: reportUnknownMemberType=false
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from shards.audit.audit import AUDIT_VERSION, REPORT_FILE, read_values
from shards.audit.audit import audit as audit_set
from shards.format.document_table import read_sources
from shards.format.manifest import MANIFEST_FILE
from shards.format.reader import ShardSet
from shards.format.shard import Shard
from shards.format.vocabulary import Vocabulary
from shards.report.render import Report, check_replaceable, describe_sources, render_card, render_page, rows_of
from shards.stores.files import make_folder, read_file, write_text
from shards.stores.open import AnyPath, open_store
from shards.stores.store import FolderStore, check_outside, folder_beside
from shards.terminal.display import JsonObject, Table
from shards.terminal.reporter import Progress, no_progress
from shards.trace.locate import Place, decode_beginning, find_places
from shards.validation.files import require_whole

PAGE_FILE, CARD_FILE = "index.html", "README.md"
_MARKS = {PAGE_FILE: b": a token set</title>", CARD_FILE: b"| manifest, SHA-256 | `"}
"""Text in every page and card that a report wrote. A file of that name without this text is not replaced."""

SAMPLES = 2
"""Maximum documents shown of each source."""

SHOWN_ENTRIES = 12
"""Maximum entries of the vocabulary shown in each table."""


SHOWN_CHARACTERS = 700
"""Maximum shown of each document."""


def report_to_dict(report: Report) -> JsonObject:
    """Return the JSON object of a report: the facts of its set, its verdicts and where its samples are."""
    stated = ("name", "kind", "places", "license")
    return {
        "name": report.manifest.name,
        "manifest_sha256": report.manifest_sha256,
        "tokens": report.audit["tokens"],
        "documents": report.audit["documents"],
        "bytes": report.bytes,
        "sources": [{name: source[name] for name in stated} for source in report.sources],
        "out": str(report.out),
        "files": [PAGE_FILE, CARD_FILE],
        "verdict": report.audit["verdict"],
        "checks": {check["name"]: check["verdict"] for check in report.audit["checks"]},
        "bytes_per_token": {"set": report.whole_bytes_per_token, "sources": report.bytes_per_token},
        "samples": {
            name: [sample["place"].to_dict() for sample in samples] for name, samples in report.samples.items()
        },
    }


def write_report(
    path: AnyPath,
    *,
    out: Path | None = None,
    audit: Path | None = None,
    workers: int = 1,
    shorten: Callable[[str], str] = str,
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
        shorten: returns what the page shows of the recipe's text.
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
    for name, mark in _MARKS.items():
        check_replaceable(out / name, mark)
    # Beside the set, or beside the report of a set at an address.
    if audit is None:
        audit = folder_beside(store if store.folder is not None else FolderStore(out), "audit")
    shard_set = require_whole(store)
    if not is_audited(shard_set, audit):
        audit_set(path, out=audit, workers=workers, progress=progress)
    found = json.loads((audit / REPORT_FILE).read_bytes())
    manifest = shard_set.manifest
    recipe_text = store.read(manifest.recipe.file).decode("utf-8", "backslashreplace")
    # The manifest lists the files of shards; the other three are asked for their sizes.
    others = (MANIFEST_FILE, manifest.recipe.file, manifest.tokenizer.file)
    report = Report(
        out,
        manifest,
        shard_set.manifest_sha256,
        shorten(recipe_text),
        sum(file.bytes for file in manifest.files) + sum(map(store.size, others)),
        describe_sources(manifest, recipe_text),
        describe_vocabulary(found, audit, shard_set.vocabulary),
        found,
        draw_samples(shard_set),
    )
    # Both are rendered before either is written.
    rendered = {CARD_FILE: render_card(report), PAGE_FILE: render_page(report)}
    make_folder(out)
    for name, text in rendered.items():
        write_text(out / name, text)
    return report


_MOST_AUDIT_BYTES = 1 << 28
_READ_KEYS = {"verdict", "tokens", "documents", "rare_below", "checks"}
"""Keys of audit.json that a report reads."""


def is_audited(shard_set: ShardSet, folder: Path) -> bool:
    """Return whether a folder has a whole audit of this very set, for a report: audit.json is written last."""
    expected = {"manifest_sha256": shard_set.manifest_sha256, "audit_version": AUDIT_VERSION}
    try:
        found: Any = json.loads(read_file(folder / REPORT_FILE, _MOST_AUDIT_BYTES))
        fits = isinstance(found, dict) and expected.items() <= found.items() and found.keys() >= _READ_KEYS
        return fits and len(read_values(folder, "documents")) == shard_set.vocab_size
    except (ValueError, KeyError, OSError, RecursionError):  # Arrow's errors of a damaged file are one of these
        return False


def describe_vocabulary(found: JsonObject, folder: Path, vocabulary: Vocabulary) -> JsonObject:
    """Return how training uses the vocabulary, for a report: from audit.json, and its folder.

    Returns:
        seen: ids that occur; `never_seen` and `unseen_bytes`, of single bytes, count those that do not. The
            `special` ids are in none of them.
        rare: ids that occur fewer than `rare_below` times; they are among `seen`.
        longest: the longest entries by bytes, without special ids: text, bytes and count of each.
        rarest: the rarest entries in the audit, rarest first.

    Raises:
        OSError: the audit's files cannot be read.
    """
    counts = np.from_dlpack(read_values(folder, "count")).astype(np.int64)
    plain, lengths, below = ~vocabulary.special_mask(), vocabulary.entry_lengths(), int(found["rare_below"])
    seen, unseen = plain & (counts > 0), plain & (counts == 0)
    longest: list[int] = np.argsort(-np.where(plain, lengths, 0), kind="stable")[:SHOWN_ENTRIES].tolist()

    def show(token: int) -> JsonObject:
        return {"text": vocabulary.spell(token), "bytes": int(lengths[token]), "count": int(counts[token])}

    return {
        "ids": len(counts),
        "seen": int(seen.sum()),
        "never_seen": int((unseen & (lengths != 1)).sum()),
        "unseen_bytes": int((unseen & (lengths == 1)).sum()),
        "special": int((~plain).sum()),
        "rare": int((seen & (counts < below)).sum()),
        "rare_below": below,
        "longest": [show(token) for token in longest if plain[token] and lengths[token]],
        "rarest": [show(row["id"]) for row in rows_of(found, "rare")[:SHOWN_ENTRIES]],
    }


def draw_samples(shard_set: ShardSet) -> dict[str, Table]:
    """Draw training documents of each source to show in a report: the first `SAMPLES` in the set's order.

    Shards are shuffled by content hash, so this is as good as a random draw, and always the same.

    Raises:
        ShardSetError: a document table is not what the manifest says.
    """
    numbers = shard_set.source_numbers
    samples: dict[str, Table] = {name: [] for name in numbers}
    for shard in shard_set.splits["train"]:
        wanted = [name for name in shard.entry.sources if len(samples[name]) < SAMPLES]
        if not wanted:
            continue
        _, sources = read_sources(shard, numbers)
        rows = [np.flatnonzero(sources == numbers[name])[: SAMPLES - len(samples[name])] for name in wanted]
        for place in find_places(shard, np.concatenate(rows).tolist()):
            samples[place.source].append(_read_sample(shard, place, shard_set.vocabulary))
    return samples


def _read_sample(shard: Shard, place: Place, vocabulary: Vocabulary) -> JsonObject:
    """Return the place and the beginning of a document that a report shows, and whether it is `whole`.

    A character has at most 4 tokens, so at most 4 for each are read.
    """
    stop = min(place.tokens - 1, 4 * SHOWN_CHARACTERS + 1)  # one for BOS
    data = vocabulary.decode_document(shard.read(place.start, place.start + stop))
    whole = stop == place.tokens - 1
    text = decode_beginning(data, final=whole)
    shown = text[:SHOWN_CHARACTERS]  # with lone surrogates for bytes that are not UTF-8
    return {"place": place, "text": shown, "whole": whole and len(text) <= SHOWN_CHARACTERS}

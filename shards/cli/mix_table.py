"""The mix of a set as `build` and `inspect` show it: a row for each source, and what a person should look at."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shards.errors import plural
from shards.terminal.display import Table

if TYPE_CHECKING:
    from shards.format.manifest import Manifest, MixEntry, SourceEntry

SHOWN_DEVIATION = 0.01
"""A source further than this from its share of the training tokens is pointed out, though it is within a document."""
VALIDATION_DEVIATION = 0.1
"""A source is pointed out if validation holds this part more or less of it than its share."""
VALIDATION_PART = 0.05
"""A source is pointed out if validation takes more than this part of its tokens."""


def mix_rows(manifest: Manifest) -> Table:
    """Return the table of the mix: shares, tokens of both splits, and the way of the documents of each source."""
    # Sources that were read in part have two columns more.
    partly = any(source.unread_files or source.unread_bytes for source in manifest.sources)
    rows: Table = []
    for source, mix in _pairs(manifest):
        train, val = (manifest.count(split, source.name) for split in ("train", "val"))
        asked = _asked_of_validation(manifest, mix.requested)
        dropped = sum(source.dropped.values())
        row: dict[str, Any] = {
            "source": source.name,
            "requested": f"{mix.requested:.4%}",
            "achieved": f"{mix.achieved:.4%}",
            "train_tokens": train.tokens,
            "val_tokens": val.tokens,
            "val_off_share": f"{val.tokens / asked - 1:+.1%}" if asked else None,
            "documents_read": source.documents_available + dropped,
            "dropped": dropped,
            # Documents that were left after drops and are in no split; a source that is repeated is used whole.
            "unused": source.documents_available - train.documents - val.documents if source.epochs == 1 else 0,
            "epochs": source.epochs,
        }
        if partly:
            row |= {"unread_files": source.unread_files, "unread_bytes": source.unread_bytes}
        rows.append(row)
    return rows


def phase_rows(manifest: Manifest) -> Table:
    """Return the table of the phases: a row for each phase and source."""
    shards = Counter(shard.phase for shard in manifest.shards)
    return [
        {
            "phase": phase.name,
            "part": f"{phase.share:.4%}",
            "shards": shards[phase.name],
            "source": row.source,
            "requested": f"{row.requested:.4%}",
            "achieved": f"{row.achieved:.4%}",
            "tokens": row.achieved_tokens,
        }
        for phase in manifest.phases
        for row in phase.mix
    ]


def mix_warnings(manifest: Manifest) -> list[str]:
    """Return warnings about the mix, at which to look before training on the set, a line each."""
    lines: list[str] = []
    for source, mix in _pairs(manifest):
        if abs(mix.achieved - mix.requested) > SHOWN_DEVIATION:
            lines.append(
                f"{source.name} has {mix.achieved:.2%} of the training tokens, not {mix.requested:.2%}: its documents, "
                "or those of another source, are long for a set this small"
            )
        val = manifest.count("val", source.name)
        asked = _asked_of_validation(manifest, mix.requested)
        # Without validation there is nothing more to compare.
        if not asked or source.name not in manifest.splits["val"].sources:
            continue
        if abs(val.tokens - asked) > VALIDATION_DEVIATION * asked:
            lines.append(
                f"validation holds {plural(val.tokens, 'token')} of {source.name}, and its share is {asked:,.0f}: a "
                f"split ends at the end of a document, and validation has only {val.documents:,} of this source. Ask "
                "for more split.val_tokens"
            )
        if val.tokens > VALIDATION_PART * source.tokens_available:
            lines.append(
                f"validation takes {val.tokens / source.tokens_available:.1%} of {source.name} ({val.documents:,} of "
                f"{plural(source.documents_available, 'document')}), more than {VALIDATION_PART:.0%}: less is left to "
                "train on. Ask for fewer split.val_tokens, or add data"
            )
    return lines


def _pairs(manifest: Manifest) -> list[tuple[SourceEntry, MixEntry]]:
    """Return each source with its share; a manifest that validation would refuse may lack one of them."""
    shares = {entry.source: entry for entry in manifest.mix}
    return [(source, shares[source.name]) for source in manifest.sources if source.name in shares]


def _asked_of_validation(manifest: Manifest, share: float) -> float:
    return share * manifest.splits["val"].requested_tokens if "val" in manifest.splits else 0.0

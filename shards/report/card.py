"""The header of a data card: the metadata that the Hub reads, in its own terms; and paths that a card may show.

The header has only facts of the set: no language is guessed, and a licence is named only if the recipe names one for
every source.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml

from shards.format.manifest import BLOCK_LIST_REASON, Manifest
from shards.report.facts import SourceFacts

# fmt: off
HUB_LICENSES = frozenset((
    "afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "bsl-1.0",
    "cc", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0",
    "cc-by-nd-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0",
    "cdla-sharing-1.0", "ecl-2.0", "epl-2.0", "eupl-1.1", "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "isc", "lgpl",
    "lgpl-2.1", "lgpl-3.0", "mit", "mpl-2.0", "ms-pl", "odbl", "odc-by", "osl-3.0", "pddl", "unlicense",
    "wtfpl", "zlib",
))
"""Identifiers that the Hub accepts for a licence; it refuses a card with any other."""
# fmt: on

_SCALES = {3: "1K", 4: "10K", 5: "100K", 6: "1M", 7: "10M", 8: "100M", 9: "1B", 10: "10B", 11: "100B", 12: "1T"}
"""Numbers of rows in the Hub's words, by the power of ten."""


def card_header(manifest: Manifest, sources: Sequence[SourceFacts]) -> str:
    """Return the header of a data card between its two lines; ASCII only, so that every character is exact and visible.

    Rows, for the Hub, are documents.
    """
    # The Hub calls validation by its whole name.
    names = {"train": "train", "val": "validation"}
    files = [{"split": names[split], "path": f"{split}-*.docs.parquet"} for split in manifest.splits]
    repositories = list(dict.fromkeys(source.repository for source in sources if source.repository))
    keys: dict[str, Any] = {
        "pretty_name": manifest.name,
        **_license([source.license for source in sources]),
        "task_categories": ["text-generation"],
        "tags": ["tokenmill", "tokenized", "pretraining"],
        "size_categories": [size_category(sum(shard.documents for shard in manifest.shards))],
        **({"source_datasets": repositories} if repositories else {}),
        "configs": [{"config_name": "documents", "data_files": files}],
    }
    body = yaml.safe_dump(keys, sort_keys=False, allow_unicode=False, default_flow_style=False, width=1 << 30)
    return f"---\n{body}---\n"


def size_category(documents: int) -> str:
    """Return the size category of a card, in the Hub's words, for a number of rows."""
    digits = min(len(str(documents)), 12)
    return "n<1K" if digits < 4 else f"{_SCALES[digits - 1]}<n<{_SCALES[digits]}"


def public_place(place: str) -> str:
    """Return a place of the recipe as the published card shows it; for a local path, only the file's name.

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
    """Return the reason for dropped documents as the card shows it; a block list is named by `public_place`."""
    if not reason.startswith(BLOCK_LIST_REASON):
        return reason
    return BLOCK_LIST_REASON + public_place(reason.removeprefix(BLOCK_LIST_REASON))


def _license(stated: list[str | None]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for name in stated if name is not None))
    if not names or None in stated:
        return {"license": "unknown"}
    # The Hub refuses a card with any other identifier.
    known = [name.lower() for name in names]
    if all(name in HUB_LICENSES for name in known):
        return {"license": known[0] if len(known) == 1 else known}
    return {"license": "other", "license_name": ", ".join(names)}

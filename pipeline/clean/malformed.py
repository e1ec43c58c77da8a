"""The budget for malformed records: the share of a source that `max_malformed` lets a build leave out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipeline.clean.documents import SHOWN_MALFORMED
from pipeline.sources.base import MALFORMED, SourceError

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe


def check_malformed(source: SourceRecipe, results: Iterable[dict[str, Any]]) -> str:
    """Check that no more of a source's records are malformed than its recipe allows; return what was dropped, in words.

    Args:
        source: the source.
        results: the results of encoding its units: `documents` left, `dropped` by reason, some `malformed` records.

    Returns:
        A few lines with the count and some of the records; empty when there are no malformed ones.

    Raises:
        SourceError: with the same lines, when there are too many.
    """
    results = list(results)
    malformed = sum(done["dropped"].get(MALFORMED, 0) for done in results)
    records = sum(done["documents"] + sum(done["dropped"].values()) for done in results)
    if not malformed:
        return ""
    share = malformed / records
    found = f"source {source.name!r}: {malformed:,} of {records:,} records ({share:.2%}) are malformed"
    shown = [record for done in results for record in done.get("malformed", [])][:SHOWN_MALFORMED]
    listed = "".join(f"\n  {record}" for record in shown)
    if malformed <= source.max_malformed * records:
        return f"{found} and dropped. Examples:{listed}"
    enough = min(1.0, math.ceil(share * 1e4) / 1e4)
    raise SourceError(
        f"{found}, more than max_malformed = {source.max_malformed} allows. Examples:{listed}\n"
        f"Repair the records, or set max_malformed = {enough} to go on without them; nothing is then encoded again."
    )

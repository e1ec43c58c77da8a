"""The budget for malformed records: the share of a source that `max_malformed` lets a build leave out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipeline.clean.documents import SHOWN_MALFORMED
from pipeline.sources.base import MALFORMED, SourceError

if TYPE_CHECKING:
    from pipeline.recipe.schema import SourceRecipe


def check_malformed(source: SourceRecipe, results: Iterable[dict[str, Any]]) -> None:
    """Check that no more of a source's records are malformed than its recipe allows.

    Args:
        source: the source.
        results: the results of encoding its units: `documents` left, `dropped` by reason, some `malformed` records.

    Raises:
        SourceError: with the counts, and some of the records.
    """
    results = list(results)
    malformed = sum(done["dropped"].get(MALFORMED, 0) for done in results)
    records = sum(done["documents"] + sum(done["dropped"].values()) for done in results)
    if malformed <= source.max_malformed * records:
        return
    share = malformed / records
    shown = [record for done in results for record in done.get("malformed", [])][:SHOWN_MALFORMED]
    enough = min(1.0, math.ceil(share * 1e4) / 1e4)
    raise SourceError(
        f"source {source.name!r}: {malformed:,} of {records:,} records ({share:.2%}) are malformed, more than "
        f"max_malformed = {source.max_malformed} allows. Such as:\n"
        + "".join(f"  {record}\n" for record in shown)
        + f"Mend the records, or set max_malformed = {enough} to go on without them: then nothing is encoded again."
    )

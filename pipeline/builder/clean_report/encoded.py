"""Documents that cleaning dropped before encoding, drawn from those that the receipts of the runs show."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import xxhash

from pipeline.clean.patterns import LABEL
from pipeline.clean.tally import Tally

EXAMPLES = 20
"""Documents that are shown of each reason."""


def draw_examples(tally: Tally) -> list[dict[str, Any]]:
    """Return `EXAMPLES` documents of each reason, as JSON values, by the hash of their place: of all units."""
    # The hash of a place is a random order that stays the same.
    drawn: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    shown = [document for document in tally.shown if document.step != LABEL]
    for one in sorted(shown, key=lambda one: xxhash.xxh3_64_intdigest(f"{one.place} {one.row}".encode())):
        seen[one.reason] += 1
        if seen[one.reason] <= EXAMPLES:
            drawn.append({key: value for key, value in asdict(one).items() if key != "step"})
    return drawn

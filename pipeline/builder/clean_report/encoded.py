"""Documents that cleaning dropped or masked before encoding, from the receipts of the runs."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import xxhash

from pipeline.clean.patterns import LABEL
from pipeline.clean.personal_data import count_masked
from pipeline.encode.run import CONNECTIONS, Run
from pipeline.mix.drops.table import Step, count_before_encoding

EXAMPLES = 20
"""Documents that are shown of each reason."""


def read_encoded(runs: list[Run], sources: int) -> list[tuple[dict[str, Step], dict[str, Any]]]:
    """Read what was done as each source was encoded.

    Returns:
        For each source the steps that dropped documents; and as JSON values what was `masked`, documents and
        occurrences by kind, and `examples`, some of the documents that were dropped.

    Raises:
        WorkFileDamagedError: a run's receipt is not as it was written.
    """

    def read(run: Run) -> dict[str, Any]:
        return run.output.result

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        results = list(pool.map(read, runs))
    return [
        _add_up([result for result, run in zip(results, runs, strict=True) if run.source == source])
        for source in range(sources)
    ]


def _add_up(results: list[dict[str, Any]]) -> tuple[dict[str, Step], dict[str, Any]]:
    dropped: Counter[str] = Counter()
    examples: list[dict[str, Any]] = []
    for done in results:
        dropped.update(done["dropped"])
        examples += [item for item in done.get("shown", []) if item["step"] != LABEL]
    return count_before_encoding(dropped), {"masked": count_masked(results), "examples": _draw(examples)}


def _draw(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `EXAMPLES` of each reason, by the hash of their place: not all of the first unit."""
    # The hash of a place is a random order that stays the same.
    drawn: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for item in sorted(examples, key=lambda item: xxhash.xxh3_64_intdigest(f"{item['place']} {item['row']}".encode())):
        seen[item["reason"]] += 1
        if seen[item["reason"]] <= EXAMPLES:
            drawn.append({key: item[key] for key in item if key != "step"})
    return drawn

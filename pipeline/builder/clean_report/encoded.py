"""Documents that cleaning dropped or masked before encoding, from the receipts of the runs."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import xxhash

from pipeline.clean.patterns import LABEL
from pipeline.clean.personal_data import count_masked
from pipeline.encode.run import CONNECTIONS, Run
from pipeline.mix.drops.table import Step, count_before_encoding

EXAMPLES = 20
"""Documents that are shown of each reason."""


class EncodedSource(NamedTuple):
    """What was done as a source was encoded."""

    steps: dict[str, Step]
    """The steps that dropped documents."""
    masked: dict[str, dict[str, int]]
    """Documents and occurrences of personal data that was masked, by kind."""
    examples: list[dict[str, Any]]
    """Some of the documents that were dropped."""


def read_encoded(runs: list[Run], sources: int) -> list[EncodedSource]:
    """Read what was done as each source was encoded.

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


def _add_up(results: list[dict[str, Any]]) -> EncodedSource:
    dropped: Counter[str] = Counter()
    examples: list[dict[str, Any]] = []
    for done in results:
        dropped.update(done["dropped"])
        examples += [item for item in done.get("shown", []) if item["step"] != LABEL]
    return EncodedSource(count_before_encoding(dropped), count_masked(results), _draw(examples))


def _draw(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `EXAMPLES` of each reason, by the hash of their place: not all of the first unit."""
    drawn: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for item in sorted(examples, key=lambda item: xxhash.xxh3_64_intdigest(f"{item['place']} {item['row']}".encode())):
        seen[item["reason"]] += 1
        if seen[item["reason"]] <= EXAMPLES:
            drawn.append({key: item[key] for key in item if key != "step"})
    return drawn

"""The table of sources and steps: what each step of cleaning drops of each source, or would drop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pipeline.mix.near_duplicates.drop import NEAR_DUPLICATE, NEAR_DUPLICATE_ELSEWHERE
from shards.format.manifest import BLOCK_LIST_REASON

ENCODING = "before encoding"
REPORTED = "reported, not dropped"


@dataclass
class Step:
    """A step of cleaning, or one reason of it, and a source."""

    name: str
    documents: int
    """Those that it is the first to drop; for a step that reports, those that it found."""
    tokens: int | None
    """Theirs; None before encoding."""
    every: int | None
    """The documents that it would drop without the others: also those that an earlier step drops; None if not known."""
    note: str = ""
    reasons: list[Step] = field(default_factory=list["Step"])


@dataclass(frozen=True)
class SourceSteps:
    """A source and its steps."""

    name: str
    documents: int
    """All that were read."""
    encoded: dict[str, int]
    """Documents and tokens of those that were encoded."""
    left: dict[str, int]
    steps: list[Step]
    masked: dict[str, dict[str, int]]


def list_steps(report: dict[str, Any]) -> list[SourceSteps]:
    """Return the table of a report that `read_clean_report` returned, in the recipe's order."""
    cleaned = {source["name"]: source for source in report["sources"]}
    table: list[SourceSteps] = []
    for source in report["steps"]:
        before: dict[str, Any] = source["before_encoding"]
        steps = [
            *_group((reason, count, None, None) for reason, count in before["dropped"].items()),
            *_group(_mixed(report, source, cleaned.get(source["name"]))),
        ]
        for step in steps[: len({_step_of(reason) for reason in before["dropped"]})]:
            step.note = ENCODING
        if source["name"] in cleaned:
            presets = cleaned[source["name"]]["presets"]
            for step in steps:
                if step.name in presets and not step.note:
                    step.every = presets[step.name]["documents"]
        documents = source["read"]["documents"] + sum(before["dropped"].values())
        steps += _reported(report, source["name"])
        table.append(SourceSteps(source["name"], documents, source["read"], source["left"], steps, before["masked"]))
    return table


def _mixed(
    report: dict[str, Any], source: dict[str, Any], cleaned: dict[str, Any] | None
) -> Iterator[tuple[str, int, int | None, int | None]]:
    """Yield each reason of the mix with its documents, tokens, and the documents that it would drop."""
    every = {limit["reason"]: limit["every"]["documents"] for limit in cleaned["limits"]} if cleaned else {}
    for evaluation in report["evaluations"]:
        every[f"holds an item of {evaluation['name']}"] = evaluation["documents"].get(source["name"], 0)
    for reason, counts in source["dropped"].items():
        yield reason, counts["documents"], counts["tokens"], every.get(reason)


def _reported(report: dict[str, Any], name: str) -> Iterator[Step]:
    """Yield what steps with `action = "report"` found in a source."""
    near = report["near_duplicates"]
    for source in near["sources"] if near and near["action"] == "report" else ():
        if source["name"] != name:
            continue
        for reason, prefix in ((NEAR_DUPLICATE, ""), (NEAR_DUPLICATE_ELSEWHERE, "elsewhere_")):
            if count := source[f"{prefix}documents"]:
                yield Step(reason, count, source[f"{prefix}tokens"], None, REPORTED)
    for evaluation in report["evaluations"]:
        count = evaluation["documents"].get(name, 0)
        if evaluation["action"] == "report" and count:
            yield Step(f"holds an item of {evaluation['name']}", count, None, count, REPORTED)


def _group(reasons: Iterator[tuple[str, int, int | None, int | None]]) -> list[Step]:
    """Return steps with their reasons, in the order in which they first occur."""
    steps: dict[str, Step] = {}
    for reason, documents, tokens, every in reasons:
        own = Step(reason, documents, tokens, every)
        name = _step_of(reason)
        step = steps.setdefault(name, Step(name, 0, None if tokens is None else 0, every))
        step.reasons.append(own)
        step.documents += documents
        if step.tokens is not None and tokens is not None:
            step.tokens += tokens
        if len(step.reasons) > 1:
            step.every = None
    return list(steps.values())


def _step_of(reason: str) -> str:
    """Return the step of a reason: `gopher` of `gopher: min_words`; a pattern or a block list is its own."""
    if reason.startswith((BLOCK_LIST_REASON, "matches ")):
        return reason
    return reason.partition(": ")[0]

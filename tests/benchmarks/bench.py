"""Measure speed and memory on real text and print one table a topic: `make bench`.

    python -m tests.benchmarks.bench [--quick] [--only TOPIC]... [--set CONSTANT=JSON]... [--json FILE]

A topic whose corpus is not there is skipped with its reason. Takes about ten minutes on two cores, two with `--quick`.
`--set` gives a constant of the topic's module another value, such as a size: `--only scale --set DOCUMENTS=50000000`.
"""

import argparse
import contextlib
import importlib
import json
import operator
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.harness import Figures, TopicSkippedError

TOPICS = {
    "build": "build",
    "bare": "bare",
    "validate": "sets",
    "audit": "sets",
    "loader": "loaders",
    "train_step": "train_step",
    "engines": "engines",
    "memory": "build",
    "scale": "scale",
    "near_duplicates": "near_duplicates",
    "cleaned_build": "build",
    "conversations": "build",
}
"""The module of each topic: `bench_TOPIC(work, quick)` there runs it."""
GOALS = {
    "bare core_ratio": "at most 1.55",
    "bare wall_ratio": "at most 1.6",
    "bare large_core_ratio": "at most 1.55",
    "bare large_wall_ratio": "at most 1.6",
    "build ratio": "at least 15",
    "loader memory_map_ratio": "at least 1",
    "loader first_batch_ms": "at most 50",
    "loader plan_s": "at most 0.3",
    "engines s3_ratio": "at most 1.5",
    "engines ray_ratio": "at most 1.3",
    "cleaned_build ratio": "at most 2.0",
    "conversations ratio": "at least 0.7",
    "audit memory_ratio": "at most 1.15",
    "memory worker_ratio": "at most 1.15",
    "memory command_ratio": "at most 1.15",
    "near_duplicates signatures_ms_mb": "at most 15",
    "near_duplicates ratio": "at least 20",
    "near_duplicates ours_recall": "at least 0.98",
    "near_duplicates ours_dropped_of_apart": "at most 0",
    "scale mix_growth": "at most 1.4",
    "validate validate_tokens_per_s": "at least 100e6",
}
"""The goal of a topic's figure."""


def main() -> int:
    """Run the topics and return 0, or 1 when one failed or missed a goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and less text: minutes, not to be quoted")
    parser.add_argument("--only", action="append", choices=list(TOPICS), metavar="TOPIC", help=", ".join(TOPICS))
    parser.add_argument("--set", action="append", default=[], metavar="CONSTANT=JSON", help="a constant's other value")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--work", type=Path, metavar="DIR", help="scratch, kept (default: a temporary folder)")
    options = parser.parse_args()
    topics = options.only or list(TOPICS)
    changes = {name: json.loads(value) for name, _, value in (text.partition("=") for text in options.set)}
    with contextlib.ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tokenmill-bench-")))
        work.mkdir(parents=True, exist_ok=True)
        results = {topic: run_topic(topic, work.resolve(), changes, quick=options.quick) for topic in topics}
    if options.json:
        options.json.write_text(json.dumps({"quick": options.quick, "topics": results}, indent=2) + "\n")
    missed = [
        f"{topic}: {name} is {_format(value)}, expected {GOALS[f'{topic} {name}']}"
        for topic, figures in results.items()
        for name, value in figures.items()
        if not is_met(topic, name, value)
    ]
    faults = [f"{topic} failed" for topic, figures in results.items() if "error" in figures] + missed
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def run_topic(topic: str, work: Path, changes: dict[str, Any], *, quick: bool) -> Figures:
    """Run a topic and print its table; a skipped one has no figures, a failed one an `error`."""
    print(f"{topic} ...", file=sys.stderr)
    try:
        module = importlib.import_module(f"tests.benchmarks.{TOPICS[topic]}")
        for name in changes.keys() & vars(module).keys():
            print(f"{topic}: {name} = {changes[name]}", file=sys.stderr)
            setattr(module, name, changes[name])
        figures: Figures = getattr(module, f"bench_{topic}")(work, quick)
    except TopicSkippedError as reason:
        print(f"{topic}: skipped: {reason}\n")
        return {}
    except Exception as error:  # noqa: BLE001 - reported, recorded, and the exit code says so; minutes of others stay
        traceback.print_exc()
        figures = {"error": repr(error)}
    print_table(topic, figures)
    return figures


def is_met(topic: str, name: str, value: Any) -> bool:
    """Return whether a figure meets its goal; True if it has none."""
    goal = GOALS.get(f"{topic} {name}", "")
    compare = operator.ge if goal.startswith("at least") else operator.le
    return not goal or compare(value, float(goal.rpartition(" ")[2]))


def print_table(topic: str, figures: Figures) -> None:
    """Print a topic's figures, with the goal where there is one."""
    table = Table("figure", "value", "goal", title=topic, title_justify="left")
    table.columns[1].justify = "right"
    for name, value in figures.items():
        if isinstance(value, dict):
            for step, amount in value.items():
                table.add_row(f"{name}  {step}", _format(amount), "")
            continue
        goal = GOALS.get(f"{topic} {name}", "")
        verdict = "" if not goal else ", met" if is_met(topic, name, value) else ", MISSED"
        table.add_row(name, _format(value), goal + verdict)
    Console().print(table)


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    sys.exit(main())

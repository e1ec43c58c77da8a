"""Measure speed and memory on real text and print one table a topic: `make bench`.

    python -m tests.benchmarks.bench [--quick] [--only TOPIC]... [--json FILE]

Everything timed is compared within this run, as a ratio: seconds on a shared machine are not stable, ratios are. A
topic whose corpus is not there is skipped with its reason. Takes about ten minutes on two cores, two with `--quick`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.material import TopicSkippedError

Figures = dict[str, Any]

GOALS = {
    ("bare", "core_ratio"): ("at most 1.6", lambda value: value <= 1.6),
    ("bare", "wall_ratio"): ("at most 1.8", lambda value: value <= 1.8),
    ("bare", "large_core_ratio"): ("at most 1.6", lambda value: value <= 1.6),
    ("bare", "large_wall_ratio"): ("at most 1.8", lambda value: value <= 1.8),
    ("build", "ratio"): ("at least 15, goal 25", lambda value: value >= 15),
    ("evaluations", "least_typography"): ("1", lambda value: value == 1),
    ("evaluations", "found_elsewhere"): ("none", lambda value: value == 0),
    ("evaluations", "hits_ms_mb"): ("at most 30", lambda value: value <= 30),
    ("hub", "ratio"): ("at most 1.3", lambda value: value <= 1.3),
    ("hub", "worker_ratio"): ("at most 1.15", lambda value: value <= 1.15),
    ("remote_loader", "hub_loader_share"): ("less than 0.01", lambda value: value < 0.01),
    ("loaders", "mosaicml_ratio"): ("at least 5", lambda value: value >= 5),
    ("loaders", "litdata_ratio"): ("at least 1", lambda value: value >= 1),
    ("loaders", "memory_map_ratio"): ("at least 1", lambda value: value >= 1),
    ("loaders", "first_batch_ms"): ("at most 50", lambda value: value <= 50),
    ("engines", "s3_ratio"): ("at most 1.5", lambda value: value <= 1.5),
    ("engines", "ray_ratio"): ("at most 1.3", lambda value: value <= 1.3),
    ("cleaned_build", "ratio"): ("at most 2.0", lambda value: value <= 2.0),
    ("content", "files_per_s"): ("at least 500", lambda value: value >= 500),
    ("formats", "memory_ratio"): ("at most 1.3", lambda value: value <= 1.3),
    ("audit", "memory_ratio"): ("at most 1.15", lambda value: value <= 1.15),
    ("bpe", "ratio"): ("at least 4", lambda value: value >= 4),
    ("bpe", "merges_identical"): ("yes", bool),
    ("measures", "prose_ratio"): ("at least 40", lambda value: value >= 40),
    ("measures", "code_ratio"): ("at least 40", lambda value: value >= 40),
    ("memory", "worker_ratio"): ("at most 1.15", lambda value: value <= 1.15),
    ("memory", "command_ratio"): ("at most 1.15", lambda value: value <= 1.15),
    ("near_duplicates", "signatures_ms_mb"): ("at most 8", lambda value: value <= 8),
    ("near_duplicates", "pairs_resident_mb"): ("at most 2,000", lambda value: value <= 2000),
    ("near_duplicates", "ratio"): ("at least 20", lambda value: value >= 20),
    ("near_duplicates", "ours_recall"): ("at least 0.98", lambda value: value >= 0.98),
    ("near_duplicates", "ours_dropped_of_apart"): ("none", lambda value: value == 0),
    ("scale", "mix_growth"): ("at most 1.4", lambda value: value <= 1.4),
    ("validate", "validate_tokens_per_s"): ("at least 100,000,000", lambda value: value >= 100_000_000),
}
"""The goal of a figure, in words and as a test."""


def main() -> int:
    """Run the topics and return 0, or 1 when one failed or missed a goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats and less text: minutes, not to be quoted")
    parser.add_argument("--only", action="append", choices=list(TOPICS), metavar="TOPIC", help=", ".join(TOPICS))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to a file")
    parser.add_argument("--work", type=Path, metavar="DIR", help="scratch, kept (default: a temporary folder)")
    options = parser.parse_args()
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
        results = run_topics(options.work.resolve(), options.only or list(TOPICS), quick=options.quick)
    else:
        with tempfile.TemporaryDirectory(prefix="tokenmill-bench-") as folder:
            results = run_topics(Path(folder), options.only or list(TOPICS), quick=options.quick)
    if options.json:
        options.json.write_text(json.dumps({"quick": options.quick, "topics": results}, indent=2) + "\n")
    faults = [f"{topic} failed" for topic, figures in results.items() if "error" in figures]
    for (topic, name), (goal, holds) in GOALS.items():
        if name in results.get(topic, {}) and not holds(results[topic][name]):
            faults.append(f"{topic}: {name} is {_format(results[topic][name])}, expected {goal}")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def run_topics(work: Path, topics: list[str], *, quick: bool) -> dict[str, Figures]:
    """Run topics in order and print each one's table as soon as it is known."""
    results: dict[str, Figures] = {}
    for topic in topics:
        print(f"{topic} ...", file=sys.stderr)
        try:
            results[topic] = TOPICS[topic](work, quick)
        except TopicSkippedError as reason:
            print(f"{topic}: skipped: {reason}\n")
            continue
        except Exception as error:  # noqa: BLE001 - reported, recorded, and the exit code says so; minutes of others stay
            traceback.print_exc()
            results[topic] = {"error": repr(error)}
        print_table(topic, results[topic])
    return results


def print_table(topic: str, figures: Figures) -> None:
    """Print a topic's figures, with the goal where there is one."""
    table = Table(title=topic, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("goal")
    for name, value in figures.items():
        if isinstance(value, dict):
            for step, amount in value.items():
                table.add_row(f"{name}  {step}", _format(amount), "")
            continue
        goal, holds = GOALS.get((topic, name), ("", None))
        verdict = "" if holds is None else ", met" if holds(value) else ", MISSED"
        table.add_row(name, _format(value), goal + verdict)
    Console().print(table)


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bpe(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.bpe import bench_bpe

    return bench_bpe(work, quick=quick)


def _build(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.build import bench_build

    return bench_build(work, quick=quick)


def _bare(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.bare import bench_bare

    return bench_bare(work, quick=quick)


def _validate(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.build import write_set
    from tests.benchmarks.validate import bench_validate

    return bench_validate(write_set(work))


def _loader(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.build import write_set
    from tests.benchmarks.loader import bench_loader

    return bench_loader(write_set(work), work=work)


def _loaders(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.build import write_set
    from tests.benchmarks.loaders import bench_loaders, exports_python

    exports_python()
    return bench_loaders(write_set(work), work, quick=quick)


def _remote_loader(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.loader import bench_remote_loader

    return bench_remote_loader(work, quick=quick)


def _hub(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.hub import bench_hub

    return bench_hub(work, quick=quick)


def _engines(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.engines import bench_engines

    return bench_engines(work, quick=quick)


def _content(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.content import bench_content

    return bench_content(work, quick=quick)


def _audit(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.audit import bench_audit
    from tests.benchmarks.build import write_set

    return bench_audit(write_set(work), work)


def _train_step(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.train_step import bench_trainer

    return bench_trainer(work, quick=quick)


def _stages(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.stages import bench_stages

    return bench_stages(work, quick=quick)


def _memory(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.memory import bench_memory

    return bench_memory(work)


def _scale(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.scale import bench_scale

    return bench_scale(work, quick=quick)


def _measures(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.measures import bench_measures

    return bench_measures(work, quick=quick)


def _formats(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.formats import bench_formats

    return bench_formats(work, quick=quick)


def _small_files(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.small_files import bench_small_files

    return bench_small_files(work, quick=quick)


def _evaluations(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.evaluations import bench_evaluations

    return bench_evaluations(work, quick=quick)


def _near_duplicates(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.near_duplicates import bench_near_duplicates

    return bench_near_duplicates(work, quick=quick)


def _cleaned_build(work: Path, quick: bool) -> Figures:
    from tests.benchmarks.cleaned_build import bench_cleaned_build

    return bench_cleaned_build(work, quick=quick)


TOPICS: dict[str, Callable[[Path, bool], Figures]] = {
    "build": _build,
    "bare": _bare,
    "validate": _validate,
    "audit": _audit,
    "loader": _loader,
    "loaders": _loaders,
    "remote_loader": _remote_loader,
    "train_step": _train_step,
    "hub": _hub,
    "engines": _engines,
    "content": _content,
    "bpe": _bpe,
    "stages": _stages,
    "memory": _memory,
    "scale": _scale,
    "formats": _formats,
    "small_files": _small_files,
    "measures": _measures,
    "evaluations": _evaluations,
    "near_duplicates": _near_duplicates,
    "cleaned_build": _cleaned_build,
}


if __name__ == "__main__":
    sys.exit(main())

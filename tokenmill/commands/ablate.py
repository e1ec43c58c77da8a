"""Train small models on alternatives of a recipe, with several seeds, and say which data is better, and how surely.

FILE names a data recipe, a train recipe, seeds and arms, which each change some keys. Equal work is done once, the same
command resumes, and the answer is a table of differences from the first arm with their 95 % intervals.

`--dry-run` says what all of it takes on this machine, and at the price `cost.gpu_usd_per_hour` of the train recipe.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pipeline.cli.engines import add_engine, open_executor
from shards.terminal.arguments import parse_path
from shards.terminal.exit_status import PROBLEMS, WHOLE
from shards.terminal.program import Outcome, Row
from shards.terminal.shipped_recipes import find_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from tokenmill.experiments.ablation import Ablation

ANSWER_FILE = "ablation.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ablate`."""
    add_experiment(parser, "the file of an ablation (TOML), or the name of a shipped one")


def add_experiment(parser: argparse.ArgumentParser, file: str) -> None:
    """Add the arguments that all experiments have; `file` is the help of the first."""
    parser.add_argument("file", type=parse_path, metavar="FILE", help=file)
    parser.add_argument(
        "--out", type=parse_path, required=True, metavar="DIR", help="folder for sets, training runs and the answer"
    )
    parser.add_argument("--keep", action="store_true", help="keep the sets and the models' last checkpoints")
    parser.add_argument(
        "--dry-run", action="store_true", help="train nothing: measure a few steps, and say what each arm takes"
    )
    add_engine(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Run the ablation; exit status 1 if a training failed."""
    with closing(open_executor(options)) as executor:
        from pipeline.engine.stage_progress import Progress
        from tokenmill.experiments.ablation import Ablation
        from tokenmill.experiments.ablation_page import write_ablation
        from tokenmill.experiments.answer import answer_ablation, show_tables
        from tokenmill.experiments.schema import SHIPPED, load_ablation

        file = find_recipe(options.file, SHIPPED)
        ablation = Ablation(file, load_ablation(file), options.out, executor, Progress(), keep=options.keep)
        if options.dry_run:
            return _price(ablation)
        ablation.run(documents=True)
        answer = answer_ablation(ablation)
        pages = write_ablation(ablation, answer)
    tables = show_tables(answer)
    shown = [tables[name] for name in ("scores", "changes", "documents", "costs")]
    return tell_answer(answer, ablation.out / ANSWER_FILE, shown, pages)


def _price(ablation: Ablation) -> Outcome:
    from tokenmill.experiments.price import price_ablation

    rows = price_ablation(ablation, ablation.find_pending())
    unknown = [row["arm"] for row in rows if row["hours"] is None]
    if unknown:
        why = f"arms whose steps could not be measured: {', '.join(unknown)}; what all of it takes is not known"
        return Outcome({"arms": rows, "hours": None, "dollars": None}, [rows, why], PROBLEMS)
    hours = sum(row["hours"] for row in rows)
    dollars = sum(row["dollars"] or 0.0 for row in rows)
    total = f"{hours:.3g} hours of one device in all" + (f", ${dollars:,.2f}" if dollars else "")
    notes = f"{total}; eval tasks, samples and the building of sets are not counted"
    return Outcome({"arms": rows, "hours": hours, "dollars": dollars}, [rows, notes])


def tell_answer(answer: Row, file: Path, tables: Sequence[list[Row]], pages: Sequence[Path]) -> Outcome:
    """Write the answer of an experiment as JSON, and return it; exit status 1 if a training failed.

    Args:
        answer: the answer, with its `name`, `notes` and the trainings that `failed`.
        file: the file to write.
        tables: the answer as people read it.
        pages: the other files that were written.
    """
    import json

    from shards.stores.files import write_text

    write_text(file, json.dumps(answer, indent=2) + "\n")
    shown = [answer["name"], *tables, *answer["notes"], *map(str, [file, *pages])]
    return Outcome(answer, shown, PROBLEMS if answer["failed"] else WHOLE)

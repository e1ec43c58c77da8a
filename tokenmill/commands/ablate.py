"""Train small models on variants of a recipe, with several seeds, and say which is better, and how certain that is.

FILE names a data recipe, a train recipe, seeds and arms, which each change some keys. Equal work is done once, the same
command resumes, and the answer is a table of differences from the first arm with their 95% intervals.

`--dry-run` builds the sets, and says what each arm's mix is and how many trainings are missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from pipeline.cli.flags import add_allow_code, add_engine, open_executor
from shards.errors import plural
from shards.terminal.arguments import parse_path
from shards.terminal.display import JsonObject
from shards.terminal.program import Outcome
from shards.terminal.shipped_recipes import find_recipe

if TYPE_CHECKING:
    from tokenmill.experiments.ablation import Ablation
    from tokenmill.experiments.arms import Experiment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ablate`."""
    add_experiment(parser, "the file of an ablation (TOML), or the name of a shipped one")


def add_experiment(parser: argparse.ArgumentParser, file: str) -> None:
    """Add the arguments that `ablate` and other experiments have; `file` is the help of the first."""
    parser.add_argument("file", type=parse_path, metavar="FILE", help=file)
    parser.add_argument(
        "--out", type=parse_path, required=True, metavar="DIR", help="folder for sets, training runs and the answer"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="train nothing; print how many trainings are missing (`ablate` builds the sets and shows their mixes)",
    )
    add_allow_code(parser)
    add_engine(parser)


@contextmanager
def open_experiment(options: argparse.Namespace) -> Generator[Experiment]:
    """Open what `ablate` and other experiments are called with; their workers end with it."""
    with closing(open_executor(options)) as executor:
        from pipeline.engine.stage_progress import Progress
        from tokenmill.experiments.arms import Experiment

        file, out = find_recipe(options.file, "experiments"), options.out.absolute()
        yield Experiment(file, out, executor, Progress(), options.allow_code)


def run(options: argparse.Namespace) -> Outcome:
    """Run `ablate`; exit status 1 if a training failed."""
    with open_experiment(options) as experiment:
        from shards.config import load_settings
        from tokenmill.experiments.ablation import Ablation
        from tokenmill.experiments.answer import answer_ablation, show_tables, tell_answer
        from tokenmill.experiments.schema import AblationConfig

        ablation = Ablation(experiment, load_settings(AblationConfig, experiment.file))
        mix = ablation.find_mixes()
        if options.dry_run:
            return tell_missing(ablation, len(ablation.find_pending()), {"mix": mix})
        ablation.run()
        ablation.count_looks()
    answer = answer_ablation(ablation)
    return tell_answer(ablation, ablation.trainings, answer, show_tables(answer), "ablation")


def tell_missing(ablation: Ablation, missing: int, more: JsonObject) -> Outcome:
    """Return what `ablate` says of the arms, and how many trainings are missing; `more` is said as JSON, too."""
    seeds = len(ablation.config.seeds)
    rows: list[JsonObject] = [{"arm": arm.name, "trainings": seeds, "tokens": arm.tokens} for arm in ablation.arms]
    each = f"{plural(missing, 'training')} to run, of {plural(ablation.arms[0].tokens, 'token')} each"
    note = f"{each}; `tokenmill fit --measure` measures the train recipe's tokens per second on this machine"
    return Outcome({"arms": rows, "missing": missing, **more}, [more.get("mix", []), rows, note])

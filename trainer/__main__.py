"""The command: `python -m trainer train | sample`.

Exit codes: 0 done; 1 the run failed; 2 it could not run (bad input, nothing started); 130 or 143 when SIGINT or
SIGTERM interrupted training after a checkpoint was saved. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    from trainer.errors import InputError, TrainerError

    options = build_parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run_command
    try:
        return run(options)
    except InputError as error:
        if options.json:
            print(json.dumps({"status": "refused", "problems": error.problems}, indent=2))
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except (TrainerError, OSError) as error:
        if options.json:
            print(json.dumps({"status": "failed", "problems": [str(error)]}, indent=2))
        print(f"error: {error}", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line. Imports nothing heavy: `--help` must be quick."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer", description="Train a model on a shard set, and sample from it."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser("train", help="train a model", description="Train a model; resume where a run stopped.")
    train.add_argument("recipe", type=Path, metavar="RECIPE", help="a train recipe (TOML)")
    train.add_argument("--shards", type=Path, required=True, metavar="DIR", help="the shard set")
    train.add_argument("--run", type=Path, required=True, metavar="RUN", help="folder for checkpoints and metrics")
    train.add_argument(
        "--resume",
        default="auto",
        metavar="auto|never|CHECKPOINT",
        help="auto: from the newest whole checkpoint in RUN, if any (default); never: refuse a RUN that holds "
        "checkpoints; or the folder of a checkpoint",
    )
    train.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="override a key of the recipe, value in TOML syntax: --set train.steps=100",
    )
    train.set_defaults(run_command=run_train)
    sample = commands.add_parser(
        "sample", help="continue a prompt", description="Continue a prompt with a run's model."
    )
    sample.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    sample.add_argument("--prompt", required=True, metavar="TEXT", help="the beginning of a document; may be empty")
    sample.add_argument("--max-new-tokens", type=int, default=200, metavar="N", help="default %(default)s")
    sample.add_argument("--temperature", type=float, default=0.8, metavar="T", help="0: likeliest; default %(default)s")
    sample.add_argument("--top-p", type=float, default=0.95, metavar="P", help="default %(default)s")
    sample.add_argument(
        "--repetition-penalty", type=float, default=1.1, metavar="R", help="1: none; default %(default)s"
    )
    sample.add_argument("--seed", type=int, default=1337, metavar="S", help="default %(default)s")
    sample.set_defaults(run_command=run_sample)
    for command in (train, sample):
        command.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def run_train(options: argparse.Namespace) -> int:
    """Train; see the module for the exit codes."""
    from trainer.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)  # before torch: a bad recipe is reported at once
    # Threads of a CPU step wait for each other thousands of times; by default they spin for milliseconds, which on two
    # cores shared with other processes made a step of the demo 3 to 5 times slower (means of 2.6 s against 0.7 s).
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "10000"

    from trainer.progress import say
    from trainer.session import open_session
    from trainer.train import run_training

    session = open_session(recipe, options.shards, options.run, resume=options.resume, say=say)
    try:
        outcome = run_training(session, say)
    finally:
        session.lock.release()
    print_outcome(outcome, as_json=options.json)
    return 0 if outcome.interrupted_by is None else 128 + outcome.interrupted_by


def print_outcome(outcome: Any, *, as_json: bool) -> None:
    """Print how a run ended: a JSON object, or a table."""
    session = outcome.session
    seq_len, last, validation = session.recipe.train.seq_len, outcome.last_step or {}, outcome.last_validation or {}
    result = {
        "status": "complete" if outcome.interrupted_by is None else "interrupted",
        "run": str(session.run),
        "checkpoint": str(session.saved),
        "steps": session.step,
        "tokens": session.samples * seq_len,
        "epochs": round(session.samples / session.order.per_epoch, 4),
        "tokens_cropped_per_epoch": session.order.cropped,
        "short_shards": len(session.order.short_shards),
        "loss": last.get("loss"),
        **{key: value for key, value in validation.items() if key != "step"},
        "validated_at_step": validation.get("step"),
        "seconds": round(outcome.seconds, 3),
    }
    if as_json:
        print(json.dumps(result, indent=2))
        return
    from trainer.progress import print_summary

    def show(value: Any) -> str:
        if isinstance(value, dict):
            return "  ".join(f"{name} {show(part)}" for name, part in value.items())
        return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

    rows = [(name.replace("_", " "), show(value)) for name, value in result.items() if value is not None]
    print_summary(session.recipe.name, rows)


def run_sample(options: argparse.Namespace) -> int:
    """Sample; prints the prompt and its continuation."""
    from dataclasses import asdict

    from trainer.progress import say
    from trainer.sample import SampleOptions, load_run, sample_text

    names = ("max_new_tokens", "temperature", "top_p", "repetition_penalty", "seed")
    chosen = SampleOptions(**{name: getattr(options, name) for name in names})
    result = sample_text(load_run(options.run, say), options.prompt, chosen)
    if options.json:
        print(json.dumps({**asdict(result), "options": asdict(chosen)}, indent=2, ensure_ascii=False))
        return 0
    print(result.prompt + result.text)
    if result.finish == "context":
        say(f"stopped after {len(result.token_ids)} tokens: the model's context is full")
    return 0


if __name__ == "__main__":
    sys.exit(main())

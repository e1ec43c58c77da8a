"""The command: `python -m trainer COMMAND`; `--help` lists them.

Exit codes: 0 done; 1 the run failed; 2 it could not run (bad input, nothing started); 3 training stopped at an
off-ramp: a phase's goal was missed or its budget is spent; 130 or 143 when SIGINT or SIGTERM interrupted training. In
the last two cases a checkpoint was saved, unless a second SIGINT stopped it at once. 141: nobody read the output to its
end (`| head`). Results go to stdout, everything else to stderr; with `--json` a refusal and a failure, too, are JSON.

A command NAME is a module `trainer.commands.NAME` with `add_arguments(parser)` and `run(options) -> exit code`,
named in `COMMANDS`. Only the module of the command that was called is imported, so `--help` costs nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from shards.errors import InputError
from shards.terminal.arguments import add_recipe, print_json
from shards.terminal.command import PROBLEMS, run_command
from shards.terminal.display import print_rows, print_summary, say
from shards.terminal.program import add_version, called_as

if TYPE_CHECKING:
    from trainer.train import Run

COMMANDS = {
    "train": "train a model; resume where a run stopped",
    "sample": "continue prompts with a run's model",
    "trace": "find the documents that a training step was trained on",
    "plot": "draw a run's loss, learning rate, throughput and dollars",
    "export": "write a run's model for other libraries",
    "fit": "estimate which micro-batches fit in a GPU's memory",
    "cost": "compare GPUs in dollars per billion tokens",
    "bench": "time training steps, and those of transformers' Trainer",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = argparse.Namespace(json="--json" in arguments)

    def run() -> int:
        build_parser(arguments).parse_args(arguments, options)
        return options.run_command(options)

    return run_command(
        run,
        as_json=options.json and is_first_rank(),
        interrupted="interrupted; checkpoints saved before are whole",
        os_error_status=PROBLEMS,
        tell_refusals=is_first_rank(),
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Refuse arguments as other bad input is."""
        self.print_usage(sys.stderr)
        raise InputError(message)


def build_parser(arguments: list[str]) -> argparse.ArgumentParser:
    """Describe the command line: every command by name, the one that is called with its arguments."""
    parser = _Parser(prog=called_as("trainer"), description="From a shard set to a model.")
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(name, prog=called_as("trainer", name), help=summary, description=description)
        if arguments[:1] == [name]:
            # `train` describes itself here: its recipe is checked, and OpenMP told how to wait, before torch is there.
            module = sys.modules[__name__] if name == "train" else importlib.import_module(f"trainer.commands.{name}")
            module.add_arguments(command)
            command.set_defaults(run_command=module.run)
            command.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe `train`."""
    add_recipe(parser, "a train recipe (TOML), or the name of a shipped one", "--set train.steps=100")
    parser.add_argument("--shards", type=Path, required=True, metavar="DIR", help="the shard set")
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="folder for checkpoints and metrics")
    resume = (
        "auto (default): resume where RUN stopped; never: refuse a RUN that has begun; or the folder of a checkpoint"
    )
    parser.add_argument("--resume", default="auto", metavar="auto|never|CHECKPOINT", help=resume)
    passed = "continue past missed goals, spent budgets, a failed smoke test and loss spikes"
    parser.add_argument("--go-on", action="store_true", help=passed)


def run(options: argparse.Namespace) -> int:
    """Train; see the module for the exit codes."""
    from trainer.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)  # before torch: a bad recipe is reported at once
    # Threads of a CPU step wait for each other thousands of times; by default they spin for milliseconds, which on two
    # cores shared with other processes made a step of the demo 3 to 5 times slower (means of 2.6 s against 0.7 s).
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

    from trainer.session import open_session
    from trainer.train import run_training

    show = say if is_first_rank() else lambda message: None
    try:
        session = open_session(recipe, options.shards, options.run, resume=options.resume, say=show)
    except OSError as error:  # such as a disk too small for a checkpoint: nothing has begun
        raise InputError(str(error)) from error
    with closing(session):
        outcome = run_training(session, show, go_on=options.go_on)
        if is_first_rank():
            print_outcome(outcome, as_json=options.json)
    if outcome.off_ramp is not None:
        show(f"stopped: {outcome.off_ramp}. {session.saved} was saved; --go-on goes on from there.")
        return 3
    return 128 + outcome.interrupted_by if outcome.interrupted_by else 0


def is_first_rank() -> bool:
    """Whether this process speaks for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def print_outcome(outcome: Run, *, as_json: bool) -> None:
    """Print how a run ended: a JSON object, or tables."""
    from shards.format.order import account_tokens
    from trainer.phases import make_ledger

    session, step, validation = outcome.session, outcome.log.last("loss"), outcome.log.last("val_loss")
    names = [source.name for source in session.shard_set.manifest.sources]
    result = {
        "status": "stopped" if outcome.off_ramp else "interrupted" if outcome.interrupted_by else "complete",
        "run": str(session.run),
        "checkpoint": str(session.saved),
        "steps": session.step,
        "epochs": round(session.samples / session.order.per_epoch, 4),
        **account_tokens(session.shard_set.splits["train"], names, session.order, session.samples),
        "short_shards": len(session.order.short_shards),
        "loss": step.get("loss"),
        **{key: value for key, value in validation.items() if key != "step"},
        "validated_at_step": validation.get("step"),
        "seconds": round(outcome.seconds, 3),
        "usd": outcome.log.last("usd").get("usd"),
        "off_ramp": outcome.off_ramp,
    }
    phases = make_ledger(session.recipe.phases, outcome.log.records)
    if as_json:
        print_json({**result, "phases": phases})
    else:
        print_summary(session.recipe.name, result)
        print_rows(phases)


def run_process(arguments: list[str]) -> NoReturn:
    """Run the command line of this process and end it."""
    sys.exit(main(arguments))


if __name__ == "__main__":
    run_process(sys.argv[1:])

"""The command: `python -m trainer COMMAND`; `--help` lists them.

Exit statuses: 0 done; 1 the run failed; 2 it could not run (bad input, nothing started); 3 training stopped at an
off-ramp: a phase's goal was missed or its budget is spent; 130 or 143 after SIGINT or SIGTERM interrupted training. In
the last two cases a checkpoint was saved, unless a second SIGINT stopped it at once. 141: nobody read the output to its
end (`| head`). Results go to stdout, everything else to stderr; with `--json` refusals and failures are JSON too.

A command NAME is a module `trainer.commands.NAME` with `add_arguments(parser)` and `run(options) -> exit status`,
named in `COMMANDS`. Only the module of the command that was called is imported, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import NoReturn

from shards.errors import missing_extra
from shards.terminal.arguments import add_version
from shards.terminal.command_names import called_as
from shards.terminal.exit_status import PROBLEMS, run_command
from shards.terminal.parser import Parser
from trainer.commands.train import is_first_rank

COMMANDS = {
    "keys": "list every key of a train recipe",
    "train": "train a model; resume where training stopped",
    "sample": "continue prompts with a trained model",
    "trace": "find the documents that a training step was trained on",
    "plot": "draw a training run's loss, learning rate, throughput and dollars",
    "export": "write a trained model for other libraries",
    "fit": "estimate which micro-batches fit in a GPU's memory",
    "cost": "compare GPUs in dollars per billion tokens",
    "bench": "time training steps of recipes",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command of `python -m trainer` and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = argparse.Namespace(json="--json" in arguments)

    def run() -> int:
        build_parser(arguments).parse_args(arguments, options)
        try:
            return options.run_command(options)
        except ModuleNotFoundError as error:
            raise missing_extra(error) from error

    return run_command(
        run,
        as_json=options.json and is_first_rank(),
        interrupted="interrupted; checkpoints saved before are whole",
        os_error_status=PROBLEMS,
        tell_refusals=is_first_rank(),
    )


def build_parser(arguments: list[str]) -> Parser:
    """Return the parser of `python -m trainer`, which has every command by name and the arguments of the one called."""
    parser = Parser(prog=called_as("trainer"), description="From a shard set to a model.")
    add_version(parser)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        description = f"{summary[0].upper()}{summary[1:]}."
        command = commands.add_parser(name, prog=called_as("trainer", name), help=summary, description=description)
        if arguments[:1] == [name]:
            module = importlib.import_module(f"trainer.commands.{name}")
            module.add_arguments(command)
            command.set_defaults(run_command=module.run)
            command.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def run_process(arguments: list[str]) -> NoReturn:
    """Run the command line of `python -m trainer`, and end this process."""
    sys.exit(main(arguments))


if __name__ == "__main__":
    run_process(sys.argv[1:])

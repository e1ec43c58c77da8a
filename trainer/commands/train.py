"""Train a model on a shard set. Run the same command again to resume.

The exit status is 3 if a phase missed its goal, spent its budget or has a pause (under torchrun 1, as for any status
but 0; our last line and --json say why). A checkpoint is saved then, and on SIGINT or SIGTERM. The ledger and the
samples are shown; `--go-on PHASE` passes this phase alone, and the same command with it may be run again.

`--rehearse` trains a tiny model for some minutes through everything that the recipe asks for: phases, gates,
milestones, validations, eval tasks, samples, checkpoints. Missed goals are said and passed; a pause stops.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError, plural, shell_command
from shards.terminal.amounts import format_duration
from shards.terminal.arguments import add_recipe, parse_path, parse_place, parse_size
from shards.terminal.display import say
from shards.terminal.program import WHOLE, Outcome, Part

if TYPE_CHECKING:
    from trainer.train.train_model import TrainingResult

OFF_RAMP = 3
"""The exit status of training that stopped at an off-ramp."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `train`."""
    add_recipe(parser, "a train recipe (TOML), or the name of a shipped one", "--set train.steps=100")
    parser.add_argument(
        "--shards",
        type=parse_place,
        required=True,
        metavar="SET",
        help="the shard set: a folder, s3://..., gs://..., az://... or hf://...",
    )
    parser.add_argument(
        "--run", type=parse_path, required=True, metavar="RUN", help="folder for checkpoints and metrics"
    )
    beginning = parser.add_mutually_exclusive_group()
    beginning.add_argument(
        "--from",
        dest="start",
        type=parse_path,
        metavar="CHECKPOINT",
        help="start RUN from a checkpoint of another training run, such as a milestone before a cooldown; pass it "
        "again to resume RUN",
    )
    beginning.add_argument(
        "--weights",
        type=parse_path,
        metavar="RUN_OR_FOLDER",
        help="begin with the weights of another run, or of a folder of transformers (Llama's or Qwen3's kind), on any "
        "set whose tokenizer begins with theirs; the recipe may leave [model] out",
    )
    parser.add_argument(
        "--go-on",
        nargs="?",
        const="",
        metavar="PHASE",
        help="go on past the missed goal, the spent budget or the pause of the phase that has stopped RUN",
    )
    parser.add_argument("--rehearse", action="store_true", help="try the recipe with a tiny model, in RUN of its own")
    group = parser.add_argument_group("a set that is not on this machine")
    group.add_argument(
        "--cache",
        type=parse_path,
        metavar="DIR",
        help="keep the set's shards in DIR, which all ranks and runs of this machine may share (default: "
        "tokenmill/shards in $XDG_CACHE_HOME or ~/.cache)",
    )
    group.add_argument(
        "--cache-limit",
        metavar="SIZE",
        help="size limit of DIR, such as 50GB: at least two shards (default: half of the free disk space, "
        "at most 100 GB)",
    )


def run(options: argparse.Namespace) -> Outcome | int:
    """Run `train`; return how it ended, on the first rank, with its exit status: `tokenmill.__main__` lists them."""
    from trainer.recipe import load_train_recipe
    from trainer.recipe.rehearsal import shrink_recipe

    wait_without_spinning()
    weights = None
    if options.weights:
        from trainer.weights.given_weights import open_weights

        weights = open_weights(options.weights, say)
        if options.rehearse and not weights.trained.train.rehearsal:
            raise InputError(
                f"--rehearse: its model is tiny, that of {options.weights} is not. Give --weights a rehearsal of it."
            )
    model = weights and weights.trained.model.config
    recipe = load_train_recipe(options.recipe, options.overrides, model=model)
    if options.rehearse:
        whole, recipe = recipe, shrink_recipe(recipe)
        say(f"a rehearsal: {recipe.train.steps} steps for {whole.train.steps:,}, with a tiny model and little text")

    from trainer.train.train_model import is_first_rank, train_model

    result = train_model(
        recipe,
        shards=options.shards,
        run=options.run,
        start=options.start,
        weights=weights,
        cache=options.cache,
        cache_limit=parse_size("--cache-limit", options.cache_limit) if options.cache_limit else None,
        go_on=options.go_on,
        progress=True,
    )
    stopped = OFF_RAMP if result.status == "stopped" else WHOLE
    status = 128 + result.interrupted_by if result.interrupted_by else stopped
    if not is_first_rank():
        return status if result.interrupted_by else WHOLE  # else torchrun ends the first rank before it has said why
    return describe_result(recipe.name, result, status)


def wait_without_spinning() -> None:
    """Let OpenMP's threads of `train` and `fit` sleep while they wait; only before torch is imported.

    Threads of a CPU step wait for each other thousands of times. By default they spin for milliseconds, which on two
    cores shared with other processes made a step of the demo 3 to 5 times slower (means of 2.6 s against 0.7 s).
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def describe_result(name: str, result: TrainingResult, exit_status: int) -> Outcome:
    """Return how `train` ended; at an off-ramp with the ledger and the samples, and the reason in the last line."""
    from trainer.evaluation.scores import describe_counts
    from trainer.ledger import bill_phases, show_bill
    from trainer.run_folder import read_run_record, read_samples

    figures = result.figures
    compare, plot, sample = (
        shell_command("tokenmill", word, Path(figures["run"])) for word in ("compare", "plot", "sample")
    )
    amount = f"{figures['tokens_used']:,} tokens of the set ({figures['epochs']:.2f} epochs)"
    cost = f" for ${figures['usd']:,.2f}" if figures["usd"] else ""
    stopped: list[Part] = []
    if figures["off_ramp"]:
        samples = read_samples(Path(figures["run"])).get(result.step, [])
        stopped = [show_bill(bill_phases(figures["phases"]))]
        stopped += [line for one in samples for line in [*(one["prompt"] + one["text"]).splitlines(), ""]]
        passed = {phase for phase, _ in read_run_record(Path(figures["run"])).passed}
        go_on = " ".join(["--go-on", *(shlex.quote(name) for name in {figures["waits_at"]} - passed)])
        stopped.append(f"stopped: {figures['off_ramp']}. To go on, add {go_on} to the command.")
    use = "--chat           talk with it" if figures["chat"] else "--prompt TEXT    text from the model"
    shown: list[Part] = [
        f"{name}: {result.status} after {plural(result.step, 'step')}, {amount} in "
        f"{format_duration(figures['seconds'])}{cost}",
        *(f"{scored}: {describe_counts(notes)}" for scored, notes in figures.get("score_notes", {}).items()),
        f"checkpoint: {result.checkpoint}",
        "Next:",
        *[f"  {shell_command('tokenmill', *sys.argv[1:])}    resumes it"] * (result.status == "interrupted"),
        f"  {compare}                 scores, time and cost",
        f"  {plot}                    the training curves",
        f"  {sample} {use}",
        *stopped,
    ]
    return Outcome(figures, shown, exit_status)

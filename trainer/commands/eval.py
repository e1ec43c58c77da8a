"""Score a checkpoint of a training run, or a model of transformers, on eval sets and eval tasks.

The `[eval]` section of the run's recipe, or of `--recipe`, lists what to score. `--worst 20` shows the documents of
the validation split and of eval sets with the most bits per byte: the quickest way to find broken text.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError
from shards.terminal.arguments import add_overrides, add_run, parse_path, parse_place, positive_number
from shards.terminal.display import JsonObject, printable, say
from shards.terminal.program import Outcome, Part
from shards.terminal.progress import show_progress

if TYPE_CHECKING:
    from trainer.model.generate import TrainedModel
    from trainer.recipe.eval_config import EvalConfig

_show = functools.partial(show_progress, unit="items")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `eval`."""
    add_run(parser, checkpoint=True)
    parser.add_argument(
        "--recipe",
        type=parse_path,
        metavar="FILE",
        help="the train recipe whose [eval] section to use (default: the run's)",
    )
    add_overrides(parser, "--set eval.sets.web.max_tokens=10000")
    parser.add_argument(
        "--shards",
        type=parse_place,
        metavar="SET",
        help="the set that the model was trained on, for its validation split and for documents that training holds "
        "(default: where the run was trained on it)",
    )
    parser.add_argument(
        "--worst", type=positive_number, metavar="N", help="show the N documents with the most bits per byte"
    )


def run(options: argparse.Namespace) -> Outcome:
    """Return what `eval` measures: scores, validation loss if the set is there, and worst documents if asked to.

    Raises:
        RunError: the loss of a source, or a number of a score, is not finite.
    """
    import torch

    from trainer.evaluation.eval_sets import EvalSet, find_worst_documents, read_documents
    from trainer.evaluation.evaluate import evaluate, open_scorers
    from trainer.evaluation.scores import check_finite

    trained, config = _load(options)
    scorers = open_scorers(config, trained, say)
    if not scorers and trained.trained_on is None:
        raise InputError(
            f"{options.run}: there is nothing to score: the recipe has no [[eval.sets]] and no [[eval.tasks]], and "
            "the training set with its validation split is not known. Give --recipe FILE, or --shards SET."
        )
    data: JsonObject = {"model": str(options.run), "step": trained.step}
    data |= evaluate(trained, config.max_tokens, scorers, _show)
    losses = data.get("val_loss_by_source", {}).items()
    check_finite("val_loss", {f"source {name}": loss for name, loss in losses})
    if options.worst:
        # Documents of validation and of all eval sets.
        groups = [(scorer.name, scorer.documents) for scorer in scorers if isinstance(scorer, EvalSet)]
        if trained.trained_on is not None and trained.trained_on.splits.get("val"):
            groups.insert(0, ("val", read_documents(trained.trained_on, "val", config.max_tokens, "eval")))
        found: list[JsonObject] = []
        with torch.no_grad():
            for name, documents in groups:
                with _show(f"worst of {name}") as progress:
                    found += find_worst_documents(trained, name, documents, options.worst, progress)
        data["worst"] = sorted(found, key=lambda document: -document["bits_per_byte"])[: options.worst]
    return Outcome(data, _print(data))


def _load(options: argparse.Namespace) -> tuple[TrainedModel, EvalConfig]:
    """Load the model to score with `eval`, and what to score it on.

    Raises:
        InputError: there is no model, the recipe cannot be used, or a set that was given cannot, or is not the run's.
    """
    from shards import open_set
    from trainer.evaluation.eval_sets import check_set_tokenizer
    from trainer.recipe import load_train_recipe
    from trainer.run_folder import RECIPE_FILE, RUN_FILE, find_training_set, open_training_set
    from trainer.weights.trained_model import load_model

    run: Path = options.run
    trained = load_model(run, say, options.checkpoint)
    if not options.recipe and not (run / RECIPE_FILE).exists():
        raise InputError(f"{run}: has no recipe of its own. Give --recipe FILE, whose [eval] says what to score.")
    tables = {"model": trained.model.config.model_dump(), "train": trained.train.model_dump()}
    tables |= {"name": str(run), "optimizer": {"lr": 1.0}}  # which no score needs
    recipe = load_train_recipe(options.recipe or run / RECIPE_FILE, options.overrides, trained=tables)
    train, trained_on = recipe.train, None
    try:
        place = options.shards or find_training_set(run)
    except InputError as error:
        say(f"{error} Without it, there is no validation loss, and documents that training holds are not known.")
    else:
        if (run / RUN_FILE).exists():
            trained_on = open_training_set(run, place)
        else:
            trained_on = open_set(place)
            check_set_tokenizer(trained_on, trained, "--shards")
            train = train if trained_on.manifest.chat is None else train.with_values(rows="packed")
    return replace(trained, train=train, trained_on=trained_on), recipe.eval


def _print(data: JsonObject) -> Iterator[Part]:
    """Yield what `eval` prints: a table of losses and scores, then the worst documents, with the beginning of each."""
    from trainer.evaluation.eval_sets import describe_origin
    from trainer.evaluation.scores import VALIDATION_SCORES, describe_counts, read_score

    yield f"{data['model']}, step {data['step']}"
    scores = {name: read_score(data, name) for name in (*VALIDATION_SCORES, *data.get("scores", {}))}
    yield [{"score": name, **score} for name, score in scores.items() if score["value"] is not None]
    yield from (f"{name}: {describe_counts(notes)}" for name, notes in data.get("score_notes", {}).items())
    for document in data.get("worst", []):
        yield (
            f"# {document['set']}: {document['bits_per_byte']:.3f} bits per byte ({document['bytes']:,} bytes): "
            f"{describe_origin(document)}, hash {document['hash']}"
        )
        yield f"  {printable(document['excerpt'])}"

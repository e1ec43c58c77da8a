"""Upload a set and its dataset card as a dataset on the Hugging Face Hub, or with --model a run's model with its card.

The files are uploaded first; one commit at the end makes all of them visible. Run it again to resume: nothing is
uploaded twice. A set that fails validation is not uploaded. The token comes from HF_TOKEN or `hf auth login`;
HF_ENDPOINT names another Hub.

    push SET OWNER/NAME
    push RUN OWNER/NAME --model --license apache-2.0

A model is what `export-model` writes. Its card has the recipe, the mix and the set's digest, scores with their standard
errors, what each phase cost, samples, and how to load it; what it lacks is refused by name. With --dry-run the card is
printed, and the Hub is not asked.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

from shards.cli import push as set_push
from shards.errors import InputError
from shards.terminal.arguments import parse_path
from shards.terminal.display import JsonObject
from shards.terminal.program import Outcome

SHOWN_KEYS = ("model.", "train.", "optimizer.", "schedule.")
"""The keys of a recipe that a model's card shows: others may name files of this machine."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `push`."""
    set_push.add_arguments(parser)
    parser.add_argument("--model", action="store_true", help="SET is a training run: push its model")
    parser.add_argument("--license", metavar="ID", help="with --model: its licence, as the Hub names it: apache-2.0")
    about = "with --model: folder of a checkpoint (default: the newest of the run)"
    parser.add_argument("--checkpoint", type=parse_path, metavar="DIR", help=about)


def run(options: argparse.Namespace) -> Outcome:
    """Return what `push` has sent, or with `--dry-run` what it would send."""
    from shards.hub.push import CARD_FILE, SetFile
    from shards.report.render import make_render_environment
    from shards.stores.files import delete_path, hash_file, open_named, write_text
    from shards.stores.hub_store import parse_hub_address
    from trainer.checkpoint.folders import list_checkpoints, read_state
    from trainer.commands import export
    from trainer.weights.transformers_folder import WEIGHTS_FILE

    if options.card:
        with open_named(options.card):  # or the error of a file that cannot be read
            pass
    if not options.model:
        if options.license or options.checkpoint:
            raise InputError("--license and --checkpoint are of a model: add --model")
        return set_push.push_set(options)
    began, address = time.perf_counter(), parse_hub_address(options.repo.removeprefix("hf://"))
    folder = Path(options.set)
    checkpoints = [options.checkpoint] if options.checkpoint else list_checkpoints(folder)
    if not checkpoints:
        raise InputError(f"{options.set}: no checkpoints. Expected the folder given to `tokenmill train --run`.")
    state = read_state(checkpoints[-1])
    facts = gather_facts(options, state.step) | {"repo": address.repo, "chat": state.chat is not None}
    templates = make_render_environment(Path(__file__).parents[1] / "templates")
    # Beside the run, where there was room for checkpoints; a push that was killed has left it there.
    out = folder.absolute().with_name(f".{folder.absolute().name}.push")
    delete_path(out)
    try:
        asked = argparse.Namespace(to="hf", run=folder, checkpoint=checkpoints[-1], out=out, dtype="float32")
        facts |= export.run(asked).data
        write_text(out / CARD_FILE, templates.get_template("model_card.md.jinja").render(facts))
        paths = {path.name: path for path in sorted(out.iterdir(), key=lambda path: path.name == WEIGHTS_FILE)}
        paths |= {CARD_FILE: options.card} if options.card else {}
        if options.dry_run:
            card = paths[CARD_FILE].read_text(encoding="utf-8", errors="replace")
            return Outcome({"card": card, "dry_run": True}, card.splitlines())
        files = [SetFile(name, path.stat().st_size, hash_file(path), path) for name, path in paths.items()]
        load = f'transformers.AutoModelForCausalLM.from_pretrained("{address.repo}")'
        return set_push.send(options, files, replace(address, kind="model"), began, load)
    finally:
        delete_path(out)


def gather_facts(options: argparse.Namespace, step: int) -> JsonObject:
    """Return what the card of a model that is pushed shows of its first steps, beside what its export tells.

    Raises:
        InputError: a fact is missing, and no card is given; each is named.
    """
    from shards.report.render import describe_sources
    from trainer.evaluation.scores import list_scores, read_score, show_score
    from trainer.ledger import show_bill
    from trainer.results.runs import read_run
    from trainer.run_folder import open_training_set, read_samples

    whole = read_run(options.set)
    run = replace(whole, records=[record for record in whole.records if record["step"] <= step])
    lines = [(line, name) for line in run.records for name in list_scores([line])]
    scores = {name: (show_score(**read_score(line, name)), line["step"]) for line, name in lines}
    problems, sources, start, weights = list[str](), list[JsonObject](), run.record.start, run.record.weights
    try:
        shard_set = open_training_set(run.folder)
        manifest = shard_set.manifest
        sources = describe_sources(manifest, shard_set.store.read(manifest.recipe.file).decode())
    except (InputError, OSError) as error:
        problems.append(f"its card lacks the mix: {error}")
    if not options.license:
        problems.append("its card lacks a licence. Add --license ID, such as apache-2.0.")
    if not scores:
        problems.append("its card lacks scores: the run was not validated before this step.")
    if problems and not options.card:
        raise InputError([f"{options.set}: {problem} Or give a card of your own: --card FILE." for problem in problems])
    return {
        "license": options.license,
        "start": start and Path(start).name,
        "weights": weights and Path(weights).name,
        "tokens": run.last("tokens"),
        "settings": {key: value for key, value in run.list_values().items() if key.startswith(SHOWN_KEYS)},
        "digest": run.record.manifest_sha256,
        "sources": sources,
        "scores": scores,
        "bill": show_bill(run.draw_up_bill()),
        "usd": run.last("usd"),
        "samples": {at: texts for at, texts in read_samples(run.folder).items() if at <= step},
    }

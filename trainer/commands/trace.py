"""Find the documents of a training step's batch, with their source, unit and row, and the text that was read.

A sudden spike of the loss has its cause in a batch; this shows the batch, and writes its hashes for a data recipe's
`drop_hashes`. The set is found where the run was trained on it, unless `--shards` says where it is now.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from shards.errors import InputError, plural, shell_command
from shards.terminal.arguments import add_found, add_run, parse_place, positive_number
from shards.terminal.display import JsonObject, describe_shown, say
from shards.terminal.program import Outcome, Part

if TYPE_CHECKING:
    from shards.format.reader import ShardSet
    from shards.trace.locate import Excerpt, Place
    from trainer.recipe import TrainConfig


RowDocument = tuple[JsonObject, "Place", "Excerpt"]
"""A document in a row of the batch: its JSON object, its place in the set, and its text in the row with some around."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trace-step`."""
    add_run(parser)
    parser.add_argument("--step", type=positive_number, required=True, metavar="N", help="a training step, from 1")
    parser.add_argument(
        "--shards",
        type=parse_place,
        metavar="SET",
        help="the shard set, a folder, s3://... or hf://... (default: where the run was trained on it)",
    )
    add_found(parser)


def run(options: argparse.Namespace) -> Outcome:
    """Return the documents of the batch that `trace` finds, and write the block list if asked to."""
    import numpy as np

    from shards.trace.block_list import check_block_list, write_block_list
    from trainer.metrics import read_metrics
    from trainer.recipe import load_train_recipe
    from trainer.run_folder import RECIPE_FILE, open_training_set

    train = load_train_recipe(options.run / RECIPE_FILE).train
    shard_set, step = open_training_set(options.run, options.shards), options.step
    if options.out is not None:
        check_block_list(options.out, shard_set)
    # A recipe that was shortened later does not hide steps that were taken.
    records = read_metrics(options.run)
    taken = records[-1]["step"] if records else 0
    if step > max(train.steps, taken):
        raise InputError(f"no step {step} in {options.run}; its recipe has {train.steps}, counted from 1")
    if step > taken:
        say(f"step {step} has not run yet; it would read this batch")
    batch, documents, hashes = find_step_documents(shard_set, train, step, limit=options.limit)
    data: JsonObject = {"run": str(options.run)} | batch | {"shown": [document for document, _, _ in documents]}
    if options.out is not None:
        asked = shell_command("tokenmill", "trace-step", options.run, "--step", str(step))
        listed = np.frombuffer(bytes.fromhex("".join(hashes)), np.uint8).reshape(-1, 16)
        data |= {"out": str(options.out), "hashes": write_block_list(options.out, listed, shard_set, asked=asked)}
    return Outcome(data, _show(data, documents))


def find_step_documents(
    shard_set: ShardSet, train: TrainConfig, step: int, *, limit: int
) -> tuple[JsonObject, list[RowDocument], list[str]]:
    """Find the documents of a step's global batch.

    Args:
        shard_set: the set that the run was trained on.
        train: the settings of the run, which decide the order.
        step: the step, from 1 as in metrics, taken or not.
        limit: how many documents to describe. All are counted.

    Returns:
        The batch: its `step`, `rows`, `tokens` and `documents`, for each of its `sources` the `documents`, each counted
            once, and their `tokens` in the batch, and `parts`, the documents of each row added up.
        The first documents, row by row.
        The content hashes of all documents, in hex and in order.

    Raises:
        InputError: the tokenizer is not a byte-level one.
        ShardSetError: the set's files differ from the manifest.
        OSError: a file cannot be read.
    """
    from shards.format.windows.packed import order_split
    from shards.trace.locate import cut_tokens, find_window_documents

    # The same order that the run went through.
    shards = shard_set.splits["train"]
    order = order_split(shard_set, seq_len=train.seq_len, seed=train.seed, rows=train.rows)

    rows = train.global_batch
    parts, hashes = 0, set[str]()
    sources: dict[str, dict[str, int]] = {}
    found: list[RowDocument] = []
    for number, window, places in find_window_documents(shards, order, (step - 1) * rows, rows):
        for place in places:
            # The part of the document that is in the window, in tokens of the document.
            first = max(window.start - place.start, 0)
            last = min(window.stop - place.start, place.tokens)
            counts = sources.setdefault(place.source, {"documents": 0, "tokens": 0})
            counts["tokens"] += last - first
            counts["documents"] += place.hash not in hashes
            hashes.add(place.hash)
            parts += 1
            if len(found) < limit:
                document = shards[window.shard].read(place.start, place.start + place.tokens)
                _, excerpt = cut_tokens(document, first, last, shard_set.vocabulary)
                row = {
                    "batch_row": number,
                    "epoch": window.epoch,
                    "window_start": max(window.start, 0),
                    "window_stop": window.stop,
                    **place.to_dict(),
                    "position": first,
                    "in_window": last - first,
                    **asdict(excerpt),
                }
                found.append((row, place, excerpt))
    # Counts are of all documents, whatever is shown.
    batch = {
        "step": step,
        "rows": rows,
        "tokens": sum(counts["tokens"] for counts in sources.values()),
        "documents": len(hashes),
        "sources": sources,
        "parts": parts,
    }
    return batch, found, sorted(hashes)


def _show(data: JsonObject, documents: list[RowDocument]) -> Iterator[Part]:
    """Yield what `trace` prints: each row's documents, its text between >>> and <<<, counts by source and a summary."""
    from shards.trace.locate import show_place

    row = None
    for document, place, excerpt in documents:
        # A line for each new row, then its documents.
        begin, end = document["window_start"], document["window_stop"] - 1
        if (document["batch_row"], begin) != row:
            row = document["batch_row"], begin
            yield f"row {row[0]}: {place.shard} tokens {begin} to {end}, epoch {document['epoch']}"
        last = document["position"] + document["in_window"] - 1
        yield from show_place(place, f"tokens {document['position']} to {last} of {place.tokens} in this row", excerpt)
    yield [{"source": name, **counts} for name, counts in data["sources"].items()]
    size = f"{plural(data['tokens'], 'token')} of {plural(data['documents'], 'document')}"
    shown = describe_shown(len(documents), data["parts"])
    yield f"step {data['step']} of {data['run']}: {plural(data['rows'], 'row')}, {size}{shown}"
    if "out" in data:
        yield f"block list: {data['out']}, {plural(data['hashes'], 'hash')}"

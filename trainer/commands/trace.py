"""Find the documents of a training step's batch, with their source, unit and row, and the text that was read.

A sudden spike of the loss has its cause in a batch; this shows the batch, and writes its hashes for a data recipe's
`drop_hashes`. The set is found where the run was trained on it, unless `--shards` says where it is now.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import InputError, plural
from shards.terminal.arguments import add_run, parse_path, parse_place, positive_number, whole_number
from shards.terminal.program import Outcome, Part, Row

if TYPE_CHECKING:
    from trainer.commands.step_documents import RowDocument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `trace`."""
    add_run(parser)
    parser.add_argument("--step", type=positive_number, required=True, metavar="N", help="a training step, from 1")
    parser.add_argument(
        "--row", type=whole_number, metavar="N", help="one row of the step's batch, from 0 (default: all rows)"
    )
    parser.add_argument(
        "--shards",
        type=parse_place,
        metavar="SET",
        help="the shard set, a folder, s3://... or hf://... (default: where the run was trained on it)",
    )
    parser.add_argument(
        "--limit",
        type=whole_number,
        default=20,
        metavar="N",
        help="documents to show; 0 for all (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=parse_path,
        metavar="FILE",
        help="write the documents' hashes as a block list, for a data recipe's drop_hashes",
    )


def run(options: argparse.Namespace) -> Outcome:
    """Return the documents of the batch, and write the block list if asked to."""
    import numpy as np

    from shards.format.reader import open_set
    from shards.terminal.display import say
    from shards.trace.block_list import check_block_list_path, write_block_list
    from trainer.commands.step_documents import find_step_documents, read_training_run

    # The run says which set and which order; the set has the documents.
    traced = read_training_run(options.run)
    shards = options.shards or find_training_set(options.run)
    if options.out is not None:
        check_block_list_path(options.out, shards if isinstance(shards, Path) else None)
    shard_set = open_set(shards)
    row, limit = options.row, options.limit or None
    batch, documents, hashes = find_step_documents(shard_set, traced, options.step, row, limit=limit)
    for note in batch["notes"]:
        say(note)
    data = batch | {"shown": [document.to_dict() for document in documents]}
    if options.out is not None:
        asked = f"trainer trace {options.run} --step {options.step}" + ("" if row is None else f" --row {row}")
        listed = np.frombuffer(bytes.fromhex("".join(hashes)), np.uint8).reshape(-1, 16)
        data |= {"out": str(options.out), "hashes": write_block_list(options.out, listed, shard_set, asked=asked)}
    return Outcome(data, _show(data, documents))


def find_training_set(run: Path) -> Path | str:
    """Return the place of the set that a run was trained on.

    Raises:
        InputError: the run does not say, or the set is no longer there.
    """
    from trainer.run_folder import read_set_record

    place = parse_place(read_set_record(run).path)
    if isinstance(place, Path) and not place.is_dir():
        raise InputError(f"{run}: was trained on {place}, which is not there. Add --shards SET.")
    return place


def _show(data: Row, documents: list[RowDocument]) -> Iterator[Part]:
    """Yield each row's documents, the text of the row between >>> and <<<, then counts by source and a summary."""
    from shards.cli.trace import show_place
    from shards.terminal.display import describe_shown

    row = None
    for document in documents:
        # A line for each new row, then its documents.
        place, window, last = document.place, document.window, document.position + document.in_window
        if document.batch_row != row:
            row = document.batch_row
            tokens = f"tokens {window.start} to {window.stop - 1}, epoch {window.epoch}"
            yield f"row {row}: {place.shard} {tokens}"
        where = f"tokens {document.position} to {last - 1} of {place.tokens} in this row"
        yield from show_place(place, where, document.excerpt)
    yield [{"source": name, **counts} for name, counts in data["sources"].items()]
    size = f"{plural(data['tokens'], 'token')} of {plural(data['documents'], 'document')}"
    shown = describe_shown(len(documents), data["parts"])
    yield f"step {data['step']} of {data['run']}: {plural(data['rows'], 'row')}, {size}{shown}"
    if "out" in data:
        yield f"block list: {data['out']}, {plural(data['hashes'], 'hash')}"

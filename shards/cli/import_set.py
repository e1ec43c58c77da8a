"""Make a set from .bin files of nanoGPT or llm.c, to validate, audit or export it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shards.errors import plural
from shards.terminal.arguments import add_new_folder, parse_path, positive_number, whole_number
from shards.terminal.program import Outcome

if TYPE_CHECKING:
    from shards.convert.import_.import_set import Imported


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `import`."""
    parser.add_argument(
        "bins",
        type=parse_path,
        nargs="+",
        metavar="BIN",
        help="files of training tokens, read in this order as one stream",
    )
    parser.add_argument(
        "--split-val", type=parse_path, nargs="+", default=[], metavar="BIN", help="files of validation tokens"
    )
    parser.add_argument(
        "--tokenizer", type=parse_path, required=True, metavar="FILE", help="the tokenizer.json that made the tokens"
    )
    add_new_folder(parser)
    parser.add_argument("--name", help="the set's name (default: the folder's)")
    parser.add_argument(
        "--eos", type=whole_number, metavar="ID", help="id of the token between documents (default: the tokenizer's)"
    )
    parser.add_argument(
        "--bos", type=whole_number, metavar="ID", help="id of the token that begins each document (default: none does)"
    )
    parser.add_argument(
        "--dtype",
        choices=("uint16", "uint32"),
        help="dtype of files without a header (default: uint16 for up to 65,536 entries)",
    )
    parser.add_argument(
        "--close",
        action="store_true",
        help="add the missing EOS of the last document; without any EOS, a file is one document",
    )
    parser.add_argument(
        "--repeats",
        choices=("keep", "allow", "drop"),
        default="keep",
        help="documents whose text occurred before: keep them, and let validate and audit report them (default); allow "
        "them in training, as epochs of the source; or drop and count them",
    )
    parser.add_argument(
        "--shard-tokens",
        type=positive_number,
        default=100_000_000,
        metavar="N",
        help="tokens in a shard (default: 100,000,000)",
    )


def run(options: argparse.Namespace) -> Outcome:
    """Return what was found in the files."""
    from shards.convert.import_.import_set import ImportOptions, import_set
    from shards.terminal.progress import show_progress

    with show_progress("import") as progress:
        found = import_set(
            {"train": options.bins, "val": options.split_val},
            tokenizer=options.tokenizer,
            out=options.out,
            options=ImportOptions(
                name=options.name or options.out.absolute().name,
                eos_id=options.eos,
                bos_id=options.bos,
                dtype=options.dtype,
                close=options.close,
                repeats=options.repeats,
                shard_tokens=options.shard_tokens,
            ),
            progress=progress,
        )
    repeats = found.repeats
    data = {
        "out": str(options.out),
        "splits": {
            split: {
                "tokens": tokens,
                "documents": documents,
                "eos_at": found.splits[split].eos_at,
                "closed": found.splits[split].closed,
            }
            for split, (tokens, documents) in found.kept.items()
        },
        "repeats": {"in_val": repeats.in_val, "in_train": repeats.in_train, "train_in_val": repeats.leaked},
        "dropped": options.repeats == "drop",
        "epochs": found.epochs,
    }
    return Outcome(data, _show(found, options))


def _show(found: Imported, options: argparse.Namespace) -> Iterator[str]:
    for split, (tokens, documents) in found.kept.items():
        yield f"{split}: {plural(tokens, 'token')} in {plural(documents, 'document')}"
        if found.splits[split].eos_at == "start":
            yield f"{split}: EOS was before each document; it is now after it"
        if found.splits[split].closed:
            yield f"{split}: the last document had no EOS; one was added"
    repeats = found.repeats
    # Repeats are told with what can be done about them.
    if repeats.in_val or repeats.in_train or repeats.leaked:
        yield (
            f"repeats: {plural(repeats.in_train, 'document')} of train, {repeats.in_val:,} of val, {repeats.leaked:,} "
            f"of train that are in val too; {'left out' if options.repeats == 'drop' else 'kept'}"
        )
        if found.epochs > 1:
            times = plural(found.epochs, "time")
            yield f"training documents occur up to {times}: allowed, so validate and audit accept them"
        if options.repeats == "keep":
            yield "a set without epochs may not hold them: validate and audit name them (--repeats drop, or allow)"
        elif options.repeats == "allow" and (repeats.in_val or repeats.leaked):
            yield (
                "a set may not repeat documents within val, or hold them in both splits: validate and audit name them "
                "(--repeats drop)"
            )
    yield f"check it with tokenmill validate {options.out}"

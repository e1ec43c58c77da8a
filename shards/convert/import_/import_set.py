"""Make a shard set from token files of other projects, so that old data can be validated, audited and exported too.

Such a set was not built from a recipe. Its `recipe.json` has one source, `imported`, of kind `bin`, with each file's
name, split, size and digest, and how documents were cut. A document's `unit` is
`FILE@DIGEST`, and its `row` counts the documents that begin in that file.

Reads the files three times: ends of documents; hashes, for which the tokens are decoded; writing. Tokens stay as they
are, except that EOS may move to a document's other end (see `shards.convert.import_.imported_documents`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np

from shards.convert.import_.bin_files import BinStream, open_stream
from shards.convert.import_.imported_documents import (
    SOURCE,
    ImportedDocuments,
    Repeats,
    cut_documents,
    find_repeats,
    hash_documents,
)
from shards.convert.import_.manifest import make_manifest
from shards.convert.import_.shards import write_split
from shards.errors import InputError
from shards.format.manifest import Dtype, ShardEntry, Split, TokenizerEntry, dtype_for
from shards.format.vocabulary import MAX_TOKENIZER_BYTES, Vocabulary, read_vocabulary
from shards.format.writer import SetProperties, write_entry, write_manifest
from shards.stores.files import write_folder
from shards.terminal.reporter import Progress, count_up, no_progress

OnRepeat = Literal["keep", "allow", "drop"]
EOS_TEXTS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>")
"""The name of EOS in common tokenizers: GPT-2 and NeoX, Llama 3, Llama 2 and T5, Gemma, others."""


@dataclass(frozen=True)
class ImportOptions:
    """How to read the files.

    Attributes:
        name: the set's name.
        eos_id: the id between documents; the tokenizer's own when None.
        bos_id: the id that begins each document; None if none does.
        dtype: of files without a header; when None, the one that fits the vocabulary.
        close: add EOS to a last document that has none.
        repeats: what to do with documents whose text occurred before: `keep` them, so that validation and audit name
            them; `allow` those in training as epochs of the source, and keep the others; or `drop` and count them.
        shard_tokens: tokens in a shard, about.
    """

    name: str
    eos_id: int | None = None
    bos_id: int | None = None
    dtype: Dtype | None = None
    close: bool = False
    repeats: OnRepeat = "keep"
    shard_tokens: int = 100_000_000


@dataclass(frozen=True)
class Imported:
    """The result of an import: the documents found in each split, and which of them are repeats."""

    splits: dict[Split, ImportedDocuments]
    repeats: Repeats
    kept: dict[Split, tuple[int, int]]
    """Tokens and documents in the set, by split."""
    epochs: int
    """How often a training document may occur in the set."""


def import_set(
    files: dict[Split, Sequence[Path]],
    *,
    tokenizer: Path,
    out: Path,
    options: ImportOptions,
    progress: Progress = no_progress,
) -> Imported:
    """Write a shard set from token files.

    Args:
        files: each split's files, in order; `train`, and `val` if there is one.
        tokenizer: the tokenizer.json that made the tokens.
        out: a folder that does not exist or is empty; it appears when everything is written.
        options: how to read the files.
        progress: called with the tokens done so far and the tokens in all, three times each.

    Raises:
        InputError: a file or a flag cannot be used.
        OSError: a file cannot be read, or the folder is not empty or cannot be written.
    """
    # The ids that documents are cut at, from the tokenizer or the flags.
    data, vocabulary = _read_tokenizer(tokenizer)
    eos_id = _choose_eos(vocabulary.special, options.eos_id)
    if options.bos_id is not None and (options.bos_id not in vocabulary.special.values() or options.bos_id == eos_id):
        raise InputError(
            f"--bos {options.bos_id} is not a special token other than EOS. The tokenizer has these: "
            f"{vocabulary.special!s:.300}"
        )
    vocabulary = replace(vocabulary, bos=options.bos_id)
    dtype = options.dtype or dtype_for(len(vocabulary))
    # Validation first: a training document that is in it is the repeat.
    order: list[Split] = [split for split in cast("tuple[Split, ...]", ("val", "train")) if files.get(split)]
    streams: dict[Split, BinStream] = {split: open_stream(files[split], dtype) for split in order}
    advance = count_up(progress, 3 * sum(map(len, streams.values())))
    # First reading: where documents end.
    splits: dict[Split, ImportedDocuments] = {
        split: cut_documents(stream, vocab_size=len(vocabulary), eos_id=eos_id, close=options.close, advance=advance)
        for split, stream in streams.items()
    }
    # Second reading: hashes, and with them which documents repeat another.
    parts = list(splits.values())
    for documents in parts:
        hash_documents(documents, vocabulary, advance)
    num_val = len(splits["val"].ends) if "val" in splits else 0
    repeats = find_repeats(np.concatenate([documents.hashes for documents in parts]), num_val)
    # What repeats is kept, allowed as epochs of the source, or dropped.
    keep = repeats.original if options.repeats == "drop" else np.ones(len(repeats.original), bool)
    available, epochs = (keep & ~repeats.again, repeats.epochs) if options.repeats == "allow" else (keep, 1)
    for documents, own in zip(reversed(parts), (keep[num_val:], keep[:num_val]), strict=False):
        documents.keep = own
    if not splits["train"].keep.any():
        raise InputError(
            "every training document is also in validation, so none is left to train on. Give other files."
        )

    with write_folder(out) as folder:
        # Third reading: the shards; the manifest comes last.
        entry = write_entry(folder / "tokenizer.json", data)
        described = TokenizerEntry(
            file=entry.path,
            sha256=entry.sha256,
            eos_id=eos_id,
            bos_id=options.bos_id,
            special_tokens=vocabulary.special,
        )
        properties = SetProperties(
            vocab_size=len(vocabulary), eos_id=eos_id, tokenizer_sha256=entry.sha256, bos_id=options.bos_id
        )
        recipe = write_entry(folder / "recipe.json", _describe_recipe(options, splits))
        shards: list[ShardEntry] = []
        for split in reversed(order):
            shards += write_split(
                folder, split, splits[split], properties, shard_tokens=options.shard_tokens, advance=advance
            )
        manifest = make_manifest(
            options.name, described, recipe, shards, parts, available, epochs=epochs, vocab_size=len(vocabulary)
        )
        write_manifest(folder, manifest)
    counts: dict[Split, tuple[int, int]] = {
        split: (counts.tokens, counts.documents) for split, counts in manifest.splits.items()
    }
    return Imported(splits, repeats, counts, epochs)


def _read_tokenizer(path: Path) -> tuple[bytes, Vocabulary]:
    """Return a tokenizer file's bytes and its vocabulary."""
    size = path.stat().st_size
    if size > MAX_TOKENIZER_BYTES:
        raise InputError(f"{path}: {size} bytes; expected a tokenizer.json of at most {MAX_TOKENIZER_BYTES}")
    data = path.read_bytes()
    try:
        return data, read_vocabulary(data)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _choose_eos(special: dict[str, int], eos_id: int | None) -> int:
    """Return the id between documents, which must be a special token of the tokenizer."""
    if eos_id is not None:
        if eos_id not in special.values():
            raise InputError(f"--eos {eos_id} is not a special token. The tokenizer has these: {special!s:.300}")
        return eos_id
    # A tokenizer with two such tokens leaves it open which one ends documents.
    known = [text for text in EOS_TEXTS if text in special]
    if len(known) == 1:
        return special[known[0]]
    raise InputError(f"which id ends a document? Give --eos. The tokenizer's special tokens: {special!s:.300}")


def _describe_recipe(options: ImportOptions, splits: dict[Split, ImportedDocuments]) -> str:
    """Return the text of recipe.json."""
    files = [
        {
            "file": bin_file.path.name,
            "split": split,
            "dtype": bin_file.dtype,
            "header": "llm.c" if bin_file.headed else "none",
            "tokens": bin_file.num_tokens,
            "sha256": digest,
            "eos_at": documents.eos_at,
        }
        for split, documents in reversed(splits.items())
        for bin_file, digest in zip(documents.stream.bins, documents.stream.digests, strict=True)
    ]
    closed = [split for split, documents in splits.items() if documents.closed]
    source = {"name": SOURCE, "kind": "bin", "files": files, "closed": closed, "repeats": options.repeats}
    return json.dumps({"name": options.name, "sources": [source]}, indent=2) + "\n"

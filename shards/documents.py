"""One document of a shard: its exact text and where it came from.

Reads the document table up to the document's row and the frames that hold its tokens, nothing else.
"""

from __future__ import annotations

from typing import Any

from shards.contents import iter_documents
from shards.problems import Problem, ShardSetError
from shards.reader import Shard, ShardSet
from shards.tokens import decode, token_bytes


def read_document(shard_set: ShardSet, shard: Shard, number: int) -> dict[str, Any]:
    """Read one document.

    Args:
        shard_set: the set, for its tokenizer.
        shard: the shard that holds it.
        number: its place in the shard, `0 <= number < shard.num_documents`.

    Returns:
        `shard`, `document`, `start`, `tokens` (EOS included), `source`, `unit`, `row`, `hash` (hex), `text`. Bytes that
        are not UTF-8 are lone surrogates in `text`, as `surrogateescape` makes them.

    Raises:
        ShardSetError: the shard's files are not what the manifest says.
        ValueError: the tokenizer is not a byte-level one.
        OSError: a file cannot be read.
    """
    row = _read_row(shard, number)
    start, length = row["start"], row["length"]
    where = f"{shard.name} document {number}"
    if not 0 < length <= shard.num_tokens - start:
        message = f"tokens [{start}, {start + length}) of {shard.num_tokens}; expected a range inside the shard"
        raise ShardSetError([Problem("document_table", where, message)])
    table = token_bytes(shard_set.path / shard_set.manifest.tokenizer.file)
    try:
        text = decode(shard.read(start, start + length - 1).tolist(), table)
    except IndexError as error:
        message = f"holds an id that the tokenizer lacks; expected less than {len(table)}"
        raise ShardSetError([Problem("token_out_of_range", where, message)]) from error
    return {
        "shard": shard.name,
        "document": number,
        "start": start,
        "tokens": length,
        "source": row["source"],
        "unit": row["unit"],
        "row": row["row"],
        "hash": row["hash"].hex(),
        "text": text.decode("utf-8", "surrogateescape"),
    }


def _read_row(shard: Shard, number: int) -> dict[str, Any]:
    first = 0
    for batch in iter_documents(shard, ["start", "length", "source", "unit", "row", "hash"]):
        if number < first + batch.num_rows:
            return batch.slice(number - first, 1).to_pylist()[0]
        first += batch.num_rows
    message = f"the table ends after {first} rows; expected {shard.num_documents} by the manifest"
    raise ShardSetError([Problem("document_table", shard.entry.files.documents.path, message)])

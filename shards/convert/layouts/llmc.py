"""llm.c: `train_000000.bin` and on, one per shard: 256 int32 of header (magic, version, tokens, zeros), then uint16.

A document ends at EOS (llm.c's own scripts put EOS before each document; its loader does not care). The
format for Llama 3's vocabulary is read by its Python script alone, so a set of uint32 is refused. A file holds at most
2^31 - 1 tokens, since the header counts in int32.

Source: karpathy/llm.c, dev/data/data_common.py's `write_datafile` and llmc/dataloader.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shards.convert.layouts.layout import read_layout_array, refuse_uint32_layout, split_layout_at_eos
from shards.errors import plural
from shards.stores.files import atomic_open

if TYPE_CHECKING:
    from shards.convert.split_reader import Lengths, SplitReader, Tokens

USAGE = './train_gpt2cu -i "{out}/train_*.bin" -j "{out}/val_*.bin"'

MAGIC, VERSION = 20240520, 1
HEADER_BYTES = 1024
MAX_TOKENS = (1 << 31) - 1
_HEAD = struct.Struct("<3i")


def pack_header(num_tokens: int) -> bytes:
    """Return the 1,024 bytes of header of an llm.c file."""
    return _HEAD.pack(MAGIC, VERSION, num_tokens).ljust(HEADER_BYTES, b"\0")


def find_export_obstacles(reader: SplitReader) -> list[str]:
    """Refuse ids that llm.c's uint16 does not hold, and shards that its int32 cannot count."""
    return refuse_uint32_layout(reader, "llm.c") or [
        f"{shard.name} holds {plural(shard.num_tokens, 'token')}; llm.c's header counts to {MAX_TOKENS}. Build "
        "smaller shards."
        for shard in reader.shards
        if shard.num_tokens > MAX_TOKENS
    ]


def write_split(folder: Path, reader: SplitReader) -> None:
    """Write one llm.c file per shard."""
    for path, shard in zip(_paths(folder, reader), reader.shards, strict=True):
        with atomic_open(path) as file:
            file.write(pack_header(shard.num_tokens))
            for tokens in reader.iter_shard_tokens(shard):
                file.write(tokens.data)


def read_tokens(folder: Path, reader: SplitReader) -> Iterator[Tokens]:
    """Read the tokens of llm.c's files in order.

    Raises:
        ValueError: a header is wrong, or a file is not as long as it says.
    """
    for path in sorted(folder.glob(f"{reader.split}_*.bin")):
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
        expected = pack_header((path.stat().st_size - HEADER_BYTES) // 2)
        if header != expected:
            raise ValueError(f"{path.name}: header {header[:12].hex()}; expected {expected[:12].hex()} and zeros")
        yield from read_layout_array(path, reader.dtype, offset=HEADER_BYTES)


def read_lengths(folder: Path, reader: SplitReader) -> Iterator[Lengths]:
    """Cut llm.c's files at EOS."""
    return split_layout_at_eos(read_tokens(folder, reader), reader.shard_set.eos_id)


def _paths(folder: Path, reader: SplitReader) -> list[Path]:
    # Loaders take files in the glob's order. Six digits, as llm.c's scripts write, make it the order of the shards.
    return [folder / f"{reader.split}_{index:06d}.bin" for index in range(len(reader.shards))]

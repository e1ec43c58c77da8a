"""llm.c: `train_000000.bin` and on, one per shard: 256 int32 of header (magic, version, tokens, zeros), then uint16.

A document ends at EOS (llm.c's own scripts put EOS before each document; its loader does not care). The
format for Llama 3's vocabulary is read by its Python script alone, so a set of uint32 is refused. A file holds at most
2^31 - 1 tokens, since the header counts in int32.

Source: karpathy/llm.c, dev/data/data_common.py's `write_datafile` and llmc/dataloader.h.
"""

import struct

from shards.convert.layouts.layout import OpenFile, SplitReader

USAGE = './train_gpt2cu -i "{out}/train_*.bin" -j "{out}/val_*.bin"'

MAGIC, VERSION = 20240520, 1
HEADER_BYTES = 1024
HEAD = struct.Struct("<3i")


def write_split(open_file: OpenFile, reader: SplitReader) -> None:
    """Write one llm.c file per shard."""
    for index, shard in enumerate(reader.shards):
        # Loaders take files in the glob's order: six digits, as llm.c's scripts write, make it the order of the shards.
        with open_file(f"{reader.split}_{index:06d}.bin") as file:
            file.write(HEAD.pack(MAGIC, VERSION, shard.num_tokens).ljust(HEADER_BYTES, b"\0"))
            for tokens in reader.iter_shard_tokens(shard):
                file.write(tokens.data)

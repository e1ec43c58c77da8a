"""nanoGPT: `train.bin` and `val.bin`, plain uint16 tokens, no header; a document ends at EOS.

nanoGPT memory-maps these files as uint16 whatever they hold, so a set of uint32 is refused. `meta.pkl` belongs to its
character-level examples and is not written: it is a pickle. Without it train.py makes a model of 50,304 entries, enough
for a smaller vocabulary; for a larger one, change that number there.

Source: karpathy/nanoGPT, data/openwebtext/prepare.py and train.py's `get_batch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shards.convert.layouts.layout import read_layout_array, refuse_uint32_layout, split_layout_at_eos
from shards.stores.files import atomic_open

if TYPE_CHECKING:
    from shards.convert.split_reader import Lengths, SplitReader, Tokens

USAGE = 'np.memmap("{out}/{split}.bin", dtype=np.uint16, mode="r")'


def find_export_obstacles(reader: SplitReader) -> list[str]:
    """Refuse ids that nanoGPT's uint16 does not hold."""
    return refuse_uint32_layout(reader, "nanoGPT")


def write_split(folder: Path, reader: SplitReader) -> None:
    """Write nanoGPT's `SPLIT.bin`."""
    with atomic_open(folder / f"{reader.split}.bin") as file:
        for tokens in reader.iter_tokens():
            file.write(tokens.data)


def read_tokens(folder: Path, reader: SplitReader) -> Iterator[Tokens]:
    """Read the tokens of nanoGPT's `SPLIT.bin`."""
    return read_layout_array(folder / f"{reader.split}.bin", reader.dtype)


def read_lengths(folder: Path, reader: SplitReader) -> Iterator[Lengths]:
    """Cut nanoGPT's `SPLIT.bin` at EOS."""
    return split_layout_at_eos(read_tokens(folder, reader), reader.shard_set.eos_id)

"""A shard set in the layouts that other loaders read: the same tokens and document boundaries, nothing re-encoded.

`export.export_set` is the entry point. Each layout has its own module: `USAGE` says how to load the result (`{out}` is
its folder, `{split}` a split, `{token_size}` the bytes of a token), and `write_split(open_file, reader)` writes a
split's files; equal sets give equal bytes. Where a layout's bytes come from is stated in its module.
"""

from typing import Literal, get_args

LayoutName = Literal["nanogpt", "llmc", "megatron", "datatrove", "parquet"]
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
UINT16_LAYOUTS: tuple[LayoutName, ...] = ("nanogpt", "llmc")
"""The layouts that hold no id above 65,535."""

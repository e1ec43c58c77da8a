"""A shard set in the layouts that other loaders read: the same tokens and document boundaries, nothing re-encoded.

`export.export_set` is the entry point. Each layout has its own module with the functions that `layout.Layout`
names. Where a layout's bytes come from is stated in its module.
"""

from typing import Literal, get_args

LayoutName = Literal["nanogpt", "llmc", "megatron", "datatrove", "parquet"]
LAYOUTS: tuple[LayoutName, ...] = get_args(LayoutName)
UINT16_LAYOUTS: tuple[LayoutName, ...] = ("nanogpt", "llmc")
"""The layouts that hold no id above 65,535."""

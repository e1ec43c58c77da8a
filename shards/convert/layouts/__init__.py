"""A shard set in the layouts that other loaders read: the same tokens and document boundaries, nothing re-encoded.

`export.export_set` is the entry point. Each layout has its own module with the functions that `layout.Layout`
names. Where a layout's bytes come from is stated in its module.
"""

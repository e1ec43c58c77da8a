"""The command `tokenmill`: every command of `pipeline`, `shards` and `trainer` under one name.

The code is in the three packages; Python programs import those (`pipeline.build_set`, `shards.open_set`).
"""

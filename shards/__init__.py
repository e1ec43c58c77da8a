"""The shard set: its format (FORMAT.md), how to write, read and check it.

    import shards
    tokens = shards.open_set("out/demo").splits["train"][0].read()     # uint16 (num_tokens,)

Depends on numpy, pyarrow and zstandard (pydantic for metadata); knows nothing of recipes or models.
"""

from shards.problems import Problem, ShardSetError
from shards.reader import Shard, ShardSet, open_set

__all__ = ["Problem", "Shard", "ShardSet", "ShardSetError", "open_set"]

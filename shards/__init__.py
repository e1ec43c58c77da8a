"""The shard set: its format (FORMAT.md), how to write, read and check it.

    import shards
    tokens = shards.open_set("out/demo").splits["train"][0].read()     # uint16 (num_tokens,)

Depends on numpy, pyarrow and zstandard (pydantic for metadata, jinja2 for reports); knows nothing of recipes or models.
Names are loaded when first used, so that `tokenmill COMMAND --help` need not wait for numpy.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shards.errors import Problem, ShardSetError
    from shards.format.reader import ShardSet, open_set
    from shards.format.shard import Shard
    from shards.terminal.reporter import report_to

__all__ = ["Problem", "Shard", "ShardSet", "ShardSetError", "open_set", "report_to"]


def __getattr__(name: str) -> Any:
    if name in ("Problem", "ShardSetError"):
        from shards import errors as module
    elif name in ("Shard", "ShardSet", "open_set"):
        from shards.format import reader as module
    elif name == "report_to":
        from shards.terminal import reporter as module
    else:
        raise AttributeError(f"module 'shards' has no attribute {name!r}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__

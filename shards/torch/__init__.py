"""A shard set as PyTorch datasets: the samples of the global order, for any trainer.

    from shards.torch import TokenStream, TokenWindows

`TokenWindows` is map-style: `ds[i]` is sample i. `TokenStream` is iterable, and resumes with any number of ranks,
workers and samples in a batch. Both read the same samples in the same order as `tokenmill train`.

The only package of `shards` that imports torch: `import shards` does not load it.
"""

from shards.errors import name_extra

try:
    import torch as _torch  # noqa: F401  # pyright: ignore[reportUnusedImport]
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise name_extra("torch", "torch") from error

from shards.torch.batch import collate_windows
from shards.torch.stream import StateError, TokenStream
from shards.torch.windows import TokenWindows

__all__ = ["StateError", "TokenStream", "TokenWindows", "collate_windows"]

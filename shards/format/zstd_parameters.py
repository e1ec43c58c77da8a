"""How tokens are compressed: Zstandard's parameters for each choice of the recipe, measured on tokens.

Levels are tuned for text and programs. In tokens of two bytes a match of three tokens is 6 bytes and pays off, so that
one small hash table over 6 bytes finds most of what level 3 finds with two. docs/performance.md has the measurements.
Which parameters were used is nowhere in the file: any Zstandard decompressor reads it, with a window of 1 MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import zstandard

CompressionName = Literal["fast", "balanced", "small"]
Compression = CompressionName | int
"""A choice by name, or a level of Zstandard."""
LEVEL_BEFORE = 3
"""The default of version 0.1.0, with which the choices are compared."""
MOST_LARGER = 1.01
"""How much larger than level 3 `balanced` may be, as a ratio of sizes."""
_WINDOW_LOG = 20
"""A frame has 1 MiB, so that more would be of no use."""


_PARAMETERS = {
    ("fast", 2): {"strategy": zstandard.STRATEGY_FAST, "min_match": 6, "hash_log": 14, "chain_log": 6},
    ("fast", 4): {"strategy": zstandard.STRATEGY_DFAST, "min_match": 7, "hash_log": 14, "chain_log": 13},
    ("balanced", 2): {"strategy": zstandard.STRATEGY_FAST, "min_match": 6, "hash_log": 17, "chain_log": 6},
    ("balanced", 4): {"strategy": zstandard.STRATEGY_DFAST, "min_match": 5, "hash_log": 16, "chain_log": 15},
    ("small", 2): {
        "strategy": zstandard.STRATEGY_LAZY2,
        "min_match": 4,
        "hash_log": 17,
        "chain_log": 17,
        "search_log": 4,
    },
}
"""Zstandard's parameters by choice and bytes of a token; `small` with 4 bytes is level 9."""


def _level(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)


def choose_compressor(compression: Compression, *, token_bytes: int) -> Callable[[bytearray | memoryview], bytes]:
    """Return the function that makes the frames of one file, with content size and checksum, in one context.

    With `balanced` the first frame is compressed twice: with level 3, too. If the fast parameters give more than
    `MOST_LARGER` of that, as on mathematics and code, level 3 compresses the whole file. A shard's documents are in
    random order, so that its first frame is like the others. The bytes depend on the frames alone.

    Args:
        compression: a name, or a level.
        token_bytes: bytes of a token, 2 or 4.
    """
    parameters = _PARAMETERS.get((compression, token_bytes)) if isinstance(compression, str) else None
    if parameters is None:
        return _level(compression if isinstance(compression, int) else 9).compress
    common = {"search_log": 1, "window_log": _WINDOW_LOG, "write_content_size": 1, "write_checksum": 1}
    fast = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(**(common | parameters)))
    if compression != "balanced":
        return fast.compress
    before = _level(LEVEL_BEFORE)
    chosen: list[zstandard.ZstdCompressor] = []

    def compress(content: bytearray | memoryview) -> bytes:
        if chosen:
            return chosen[0].compress(content)
        # The first frame decides for the file.
        frame, other = fast.compress(content), before.compress(content)
        larger = len(frame) > MOST_LARGER * len(other)
        chosen.append(before if larger else fast)
        return other if larger else frame

    return compress

"""Token files of other projects as one stream: nanoGPT's `.bin` (uint16 or uint32, no header) and llm.c's (headed).

Several files are read as one stream in the order given, since llm.c's scripts cut documents at the ends of files.
Memory: the tokens of one read.

Source: karpathy/nanoGPT, data/openwebtext/prepare.py; karpathy/llm.c, dev/data/data_common.py's `HEADERS_INFO`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from shards.convert.layouts.llmc import HEAD, HEADER_BYTES, MAGIC, VERSION
from shards.errors import InputError, plural
from shards.format.arrays import TOKEN_DTYPES, Int64s, Rows, Tokens
from shards.format.manifest import Dtype
from shards.stores.files import hash_file

HEADERS: dict[tuple[int, int], Dtype] = {(MAGIC, VERSION): "uint16", (20240801, 7): "uint32"}
"""llm.c's magic numbers and versions: of GPT-2's files and of Llama 3's."""

IMPORT_BLOCK_TOKENS = 1 << 22
_LOOK_TOKENS = 1 << 16


@dataclass(frozen=True)
class TokenBin:
    """One file: where its tokens begin, and how many there are."""

    path: Path
    dtype: Dtype
    offset: int
    num_tokens: int

    @property
    def headed(self) -> bool:
        """Whether it has llm.c's header."""
        return self.offset > 0

    def read(self, start: int, stop: int) -> Tokens:
        """Read the tokens [start, stop), in a new array.

        Raises:
            InputError: the file has become shorter.
        """
        dtype = TOKEN_DTYPES[self.dtype]
        tokens = np.fromfile(self.path, dtype, stop - start, offset=self.offset + start * dtype.itemsize)
        if len(tokens) != stop - start:
            raise InputError(f"{self.path}: ends before token {stop}; it was longer when it was opened")
        return tokens


def open_bin(path: Path, dtype: Dtype) -> TokenBin:
    """Read a file's header, and check its size.

    Args:
        path: the file.
        dtype: of a file without a header; a header states its own.

    Raises:
        InputError: it is empty, of an odd size, shorter or longer than its header says, or plainly of another dtype.
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    # A file of llm.c states its dtype and size; nanoGPT's says nothing, so its size must fit.
    magic = HEAD.unpack_from(head) if len(head) == HEADER_BYTES else (0, 0, 0)
    headed = HEADERS.get(magic[:2])
    if headed is not None:
        found = TokenBin(path, headed, HEADER_BYTES, magic[2])
        expected = HEADER_BYTES + found.num_tokens * TOKEN_DTYPES[headed].itemsize
        if size != expected:
            raise InputError(
                f"{path}: {size} bytes; its header says {plural(magic[2], 'token')}, {expected} bytes. Copy it again."
            )
    else:
        width = TOKEN_DTYPES[dtype].itemsize
        if size % width:
            raise InputError(f"{path}: {size} bytes are not a whole number of {dtype}. Give --dtype, or copy again.")
        found = TokenBin(path, dtype, 0, size // width)
    if found.num_tokens < 1:
        raise InputError(f"{path}: has no tokens")
    # Small ids in four bytes look like every other number being 0.
    count = min(found.num_tokens, _LOOK_TOKENS) // 2 * 2
    if not found.headed and dtype == "uint16" and count >= 8:
        tokens = found.read(0, count)
        if not tokens[1::2].any() and tokens[::2].any():
            raise InputError(f"{path}: every other number is 0, as in a file of uint32. Give --dtype uint32.")
    return found


@dataclass(frozen=True)
class BinStream:
    """Files as one stream of tokens.

    Attributes:
        bins: the files, in order.
        skip: tokens at the beginning that are left out.
        appended: tokens that follow the last file's.
    """

    bins: tuple[TokenBin, ...]
    skip: int = 0
    appended: tuple[int, ...] = ()

    def __len__(self) -> int:
        return sum(bin_file.num_tokens for bin_file in self.bins) - self.skip + len(self.appended)

    @cached_property
    def digests(self) -> list[str]:
        """The SHA-256 of each file."""
        return [hash_file(bin_file.path) for bin_file in self.bins]

    @property
    def starts(self) -> Int64s:
        """The first token of each file in the stream: int64 `(files,)`; the first is 0."""
        sizes = np.array([bin_file.num_tokens for bin_file in self.bins], np.int64)
        return np.maximum(np.cumsum(sizes) - sizes - self.skip, 0)

    def read(self, start: int, stop: int) -> Rows:
        """Read the tokens [start, stop) of the stream, in a new array.

        Raises:
            InputError: a file has become shorter.
        """
        parts: list[Rows] = []
        position = -self.skip
        for bin_file in self.bins:
            first, last = max(start - position, 0), min(stop - position, bin_file.num_tokens)
            if first < last:
                parts.append(bin_file.read(first, last))
            position += bin_file.num_tokens
        # What is appended lies behind the last file.
        rest = self.appended[max(start - position, 0) : max(stop - position, 0)]
        if rest or not parts:
            parts.append(np.array(rest, np.uint32))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def iter_blocks(self) -> Iterator[Rows]:
        """Yield the stream in blocks of about 4 million tokens."""
        for start in range(0, len(self), IMPORT_BLOCK_TOKENS):
            yield self.read(start, min(start + IMPORT_BLOCK_TOKENS, len(self)))


def open_stream(paths: Sequence[Path], dtype: Dtype) -> BinStream:
    """Open files as one stream.

    Raises:
        InputError: as `open_bin`.
        OSError: a file cannot be read.
    """
    return BinStream(tuple(open_bin(path, dtype) for path in paths))

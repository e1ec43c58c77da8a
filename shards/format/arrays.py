"""Names for the types of numpy arrays, by their items; the types of tokens; where parts of an array begin."""

from typing import Any

import numpy as np
import numpy.typing as npt

TokenDtype = np.dtype[np.uint16] | np.dtype[np.uint32]
TOKEN_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
"""The little-endian types of tokens by their names in a manifest."""

Bools = npt.NDArray[np.bool_]
UInt8s = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
UInt32s = npt.NDArray[np.uint32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.integer[Any]]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.unsignedinteger[Any]]
"""Token ids, uint16 or uint32."""
Rows = npt.NDArray[Any]
"""Rows of named fields, or numbers of a type that is known at run time alone."""


def find_bounds(lengths: Integers | Bools) -> Int64s:
    """Return where each part of an array begins, by the parts' lengths, and where the last one ends, `(parts + 1,)`."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))

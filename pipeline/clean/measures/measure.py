"""Measures: small numbers that say what a document is like. Presets set limits on them; nothing edits a text."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_arrays import text_offsets
from pipeline.clean.measures.names import FAMILIES, MEASURES
from pipeline.numba_compiler import is_to_compile
from shards.errors import InputError, check_extra
from shards.format.arrays import Float32s

CODE_VERSION = 2
"""Raised when a measure of a text changes."""
_MOST_BYTES = (1 << 31) - 1
"""Positions in a document have 32 bits."""


def compile_measures(say: Callable[[str], None]) -> None:
    """Compile `measure_documents` here, unless this machine keeps it compiled: else each of many processes would.

    Args:
        say: prints a line for a person, before.

    Raises:
        MissingExtraError: numba is not installed.
    """
    if is_to_compile(Path(__file__).with_name("families.py")):
        say("compiling the measures, once on this machine: about 15 s")
        measure_documents(pa.array(["a"], pa.large_string()), MEASURES)


def measure_documents(text: pa.LargeStringArray, names: Sequence[str]) -> Float32s:
    """Measure documents by each measure that limits need.

    Args:
        text: `(documents,)`, one at least, no nulls, none empty, valid UTF-8.
        names: some of `MEASURES`.

    Returns:
        The measures, `(documents, names)`, float32, finite.

    Raises:
        InputError: a document has 2 GiB or more.
        MissingExtraError: numba is not installed.
    """
    check_extra("numba")
    from pipeline.clean.measures.families import measure_families  # loads compiled code: only where it is used

    buffers: Any = text.buffers()
    offsets = text_offsets(text)
    if (longest := int(np.diff(offsets).max())) > _MOST_BYTES:
        found = f"a document of {longest:,} bytes is to be measured; expected at most {_MOST_BYTES:,}"
        raise InputError(f"{found}. Cut it, or drop it with `max_bytes` in its source.")
    wanted = np.array([not set(family).isdisjoint(names) for family in FAMILIES.values() for _ in family])
    found = np.empty((len(text), len(MEASURES)), np.float32)
    measure_families(np.frombuffer(buffers[2], np.uint8), offsets, wanted, found)
    return found[:, [MEASURES.index(name) for name in names]]

"""The module that the fork server loads for a build: the libraries of its tasks. Only workers import it."""

# pyright: reportUnknownMemberType=false
import awkward
import gigatoken  # noqa: F401  # pyright: ignore[reportUnusedImport]
import numpy.ma  # noqa: F401  # pyright: ignore[reportUnusedImport]
import pyarrow as pa
import pyarrow.compute  # pyright: ignore[reportUnusedImport]
import pyarrow.parquet  # pyright: ignore[reportUnusedImport]
import tokenizers  # noqa: F401  # pyright: ignore[reportUnusedImport]

import pipeline.engine.tasks  # noqa: F401  # pyright: ignore[reportUnusedImport]

awkward.from_arrow(pa.nulls(0, pa.large_string()))  # loads the rest of awkward, which saves 0.1 s in each worker

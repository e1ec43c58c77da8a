"""What tells program text from data: letters and digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.clean.measures.batch import Batch, Measure, divide

if TYPE_CHECKING:
    import numpy.typing as npt


def _alphanumeric(batch: Batch) -> npt.NDArray[np.float64]:
    return divide(batch.count(np.flatnonzero(batch.letters | batch.digits)), batch.num_chars)


MEASURES = {"alphanumeric": Measure("share of the characters that are letters and digits", _alphanumeric)}

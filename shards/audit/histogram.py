"""Count document lengths in bins: a histogram of fixed size that gives quantiles and expected counts.

Each length below `EXACT` has its own bin. Above, each doubling is cut into `PER_DOUBLING` bins, so that a bin's middle
is within 1.1 % of every length in it. There are 2,048 bins, and 64 for every doubling up to 2^32.
"""

from __future__ import annotations

import math

import numpy as np

from shards.format.arrays import Float64s, Int64s

EXACT = 64
PER_DOUBLING = 64
COARSE_PER_DOUBLING = 4
BINS = EXACT + (32 - 6) * PER_DOUBLING


def bin_lengths(lengths: Int64s) -> Int64s:
    """Return the bin of each length in the histogram, `0 <= bin < BINS`; lengths are from 0 to 2^32 - 1."""
    # Above EXACT: the doubling that a length is in, and where in it.
    safe = np.maximum(lengths, EXACT)
    doubling = np.floor(np.log2(safe)).astype(np.int64)
    inside = ((safe - (1 << doubling)) * PER_DOUBLING) >> doubling
    return np.where(lengths < EXACT, lengths, EXACT + (doubling - 6) * PER_DOUBLING + inside)


def bin_middles() -> Float64s:
    """Return the length that represents each bin of the histogram, float64 `(BINS,)`."""
    middles = np.arange(BINS, dtype=np.float64)
    number = middles[EXACT:] - EXACT
    low = np.exp2(6 + np.floor(number / PER_DOUBLING))
    middles[EXACT:] = low * (1 + (np.mod(number, PER_DOUBLING) + 0.5) / PER_DOUBLING) - 0.5
    return middles


def coarse_edges() -> list[int]:
    """Return the edges of a coarse histogram: whole lengths, four to each doubling, from 1 to 2^32."""
    return sorted({math.ceil(2 ** (step / COARSE_PER_DOUBLING)) for step in range(32 * COARSE_PER_DOUBLING + 1)})


def coarsen(counts: Int64s) -> dict[int, int]:
    """Return the documents of a histogram in coarse bins, each named by its lower edge; empty bins are left out."""
    edges = np.array(coarse_edges())
    # A fine bin belongs to the coarse one that has its middle.
    groups = np.clip(np.searchsorted(edges, bin_middles(), "right") - 1, 0, len(edges) - 2)
    held = np.bincount(groups, weights=counts, minlength=len(edges) - 1).astype(np.int64)
    used = np.flatnonzero(held)
    return dict(zip(edges[used].tolist(), held[used].tolist(), strict=True))


def quantile(counts: Int64s, share: float, *, shortest: int, longest: int) -> int:
    """Return a quantile of a histogram: the length that this share of the documents is shorter than; 0 for none.

    Args:
        counts: documents by bin, int64 `(BINS,)`.
        share: from 0 to 1.
        shortest: tokens of the shortest document; the result is never less, although the middle of its bin may be.
        longest: tokens of the longest document.
    """
    total = int(counts.sum())
    if not total:
        return 0
    place = int(np.searchsorted(np.cumsum(counts), share * total, "left"))
    return min(max(round(float(bin_middles()[min(place, BINS - 1)])), shortest), longest)

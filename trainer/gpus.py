"""The peak of the usual GPUs, by name; no torch here. For MFU, and to scale a throughput from one card to another."""

from __future__ import annotations

import re

PEAK_TFLOPS = {"B200": 2250.0, "H200 NVL": 835.5, "H200": 989.4, "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.4}
PEAK_TFLOPS |= {"A100": 312.0, "L40S": 362.0, "L40": 181.0, "L4": 121.0}
PEAK_TFLOPS |= {"RTX 5090": 209.5, "RTX 4090": 165.2, "RTX 3090": 71.0}
"""Dense bf16 tensor TFLOP/s, the longer name first. Source: NVIDIA's data sheets (half of "with sparsity")."""

OTHER_CARDS = {"LAPTOP", "MAX", "TI", "D", "SUPER", "MIG"}
"""Words that make of a card another, or a part of it, whose peak is not known here."""


def peak_tflops(name: str) -> float | None:
    """Return the peak of a card whose name holds a known one, such as `NVIDIA A100-SXM4-80GB`; None if none does.

    Whole words: an `RTX A1000` is no A100, nor an `L40` an L4.
    """
    words = re.findall(r"RTX|[A-Z0-9]+", name.upper())
    known = (peak for part, peak in PEAK_TFLOPS.items() if f" {part.upper()} " in f" {' '.join(words)} ")
    return next(known, None) if OTHER_CARDS.isdisjoint(words) else None

"""The GPUs that are known by name: how fast they calculate and read, and how much they hold."""

import re

CARDS = {
    "B200": (2250.0, 180, 8.0),
    "H200 NVL": (835.5, 141, 4.8),
    "H200": (989.4, 141, 4.8),
    "H100 PCIe": (756.0, 80, 2.0),
    "H100 NVL": (835.0, 94, 3.9),
    "H100": (989.4, 80, 3.35),
    "A100 40GB": (312.0, 40, 1.555),
    "A100": (312.0, 80, 2.039),
    "RTX PRO 6000": (503.8, 96, 1.792),
    "RTX 6000 Ada": (364.2, 48, 0.96),
    "RTX A6000": (154.8, 48, 0.768),
    "L40S": (362.0, 48, 0.864),
    "L40": (181.0, 48, 0.864),
    "A40": (149.7, 48, 0.696),
    "L4": (121.0, 24, 0.3),
    "A10G": (70.0, 24, 0.6),
    "T4": (8.1, 16, 0.32),
    "RTX 5090": (209.5, 32, 1.792),
    "RTX 4090": (165.2, 24, 1.008),
    "RTX 3090": (71.0, 24, 0.936),
}
"""Dense bf16 tensor TFLOP/s, memory in GB and its bandwidth in TB/s, the longer name first. Source: NVIDIA's data
sheets (half of "with sparsity")."""
FP32_CARDS = {"T4"}
"""Cards without bf16, whose TFLOP/s are those of fp32. A T4 has 65 in fp16, which the trainer does not use."""

OTHER_CARDS = {"LAPTOP", "MAX", "TI", "D", "SUPER", "MIG"}
"""Words in a name that denote another card, or a part of one, whose peak is not in `CARDS`."""


def find_card(name: str) -> str | None:
    """Return the card whose words a device's name has, such as `NVIDIA A100-SXM4-80GB`; None if it is not known.

    Only whole words match: an `RTX A1000` is not an A100, and an `L40` is not an L4.
    """
    # Names differ in form: `A100-SXM4-80GB`, `NVIDIA GeForce RTX 4090`.
    words = {*re.findall(r"RTX|[A-Z0-9]+", name.upper())}
    known = (card for card in CARDS if words.issuperset(card.upper().split()))
    return next(known, None) if OTHER_CARDS.isdisjoint(words) else None

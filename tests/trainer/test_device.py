"""Where and in which arithmetic a model runs."""

from __future__ import annotations

import pytest
import torch

from shards.errors import InputError
from trainer.device import choose_device, peak_tflops


@pytest.mark.parametrize(("gpus", "ranks", "found"), [(0, 1, "0 GPUs, expected 1"), (1, 2, "1 GPU, expected 2")])
def test_a_gpu_that_is_not_there_is_refused(monkeypatch, gpus, ranks, found):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    with pytest.raises(InputError, match=rf"train\.device = 'cuda': torch finds {found}"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40", 181.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("rtx4090", 165.2),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GB200", None),
    ],
)
def test_a_cards_peak_is_found_by_whole_words(name, expected):
    assert peak_tflops(name) == expected

"""Where and in which arithmetic a model runs."""

from __future__ import annotations

import pytest
import torch

from shards.errors import InputError
from trainer.device import autocast, choose_device, peak_tflops

CPU = torch.device("cpu")


@pytest.mark.parametrize(("precision", "product"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_bf16_is_for_products_and_weights_stay_fp32(precision, product):
    layer = torch.nn.Linear(8, 8)
    with autocast(precision, CPU):
        out = layer(torch.ones(1, 8))
    out.float().sum().backward()
    assert out.dtype == product
    assert layer.weight.grad is not None
    assert (layer.weight.dtype, layer.weight.grad.dtype) == (torch.float32, torch.float32)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    assert choose_device("auto") == CPU
    with pytest.raises(InputError, match=r"train\.device = 'cuda': torch finds 0 GPUs, expected 1"):
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

"""Choose the device and the precision of a model; let ranks wait for each other, and share the work."""

# pyright: reportUnknownMemberType=false
import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from shards.errors import InputError, plural
from shards.terminal.reporter import Progress
from trainer.recipe.schema import ChosenPrecision, Precision

DEVICES = Path("/dev")
"""The folder of the files by which a process reaches its GPUs, such as `nvidia0`."""


def choose_device(asked: Literal["auto", "cpu", "cuda"] = "auto") -> torch.device:
    """Return the device: with `auto` a GPU when there is one. Under torchrun each local rank has its own.

    Raises:
        InputError: the recipe requires a GPU, and this machine has fewer GPUs than ranks; or it has one that torch
            does not see, and nothing asks for the CPU.
    """
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    # Every rank of a machine refuses: the first one has the word.
    needed = max(local_rank + 1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    cuda = torch.version.cuda
    built = f"torch {torch.__version__} is built {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
    available = torch.cuda.is_available()
    if asked == "auto" and not available:
        if found := _find_unseen_gpu():
            raise InputError(
                f"torch sees no GPU, but this machine seems to have one: {found}. {built}. Install a torch for a CUDA "
                'that its driver has, or update the driver. To use the CPU, set train.device = "cpu", or start with '
                'CUDA_VISIBLE_DEVICES=""'
            )
        asked = "cpu"
    if asked == "cpu":
        _keep_freed_memory()
        return torch.device("cpu")
    if not available or needed > count:
        raise InputError(
            f"train.device = {asked!r}: torch finds {plural(count, 'GPU')}, expected {needed}. See "
            f"`nvidia-smi`; {built}. "
            'Choose device = "cpu", or as many ranks as there are GPUs.'
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")  # TF32 for what stays outside bf16
    return device


def _find_unseen_gpu() -> str:
    """Return the device and driver that nvidia-smi tells of, or why it cannot, or a GPU's file; nothing without a GPU.

    An empty CUDA_VISIBLE_DEVICES hides GPUs on purpose.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ""
    query = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
        if said and said != "No devices were found":
            return said.splitlines()[0].rstrip(".").replace(", ", ", driver ")
    return next((f"{file} exists" for file in sorted(DEVICES.glob("nvidia[0-9]*"))), "")


def _keep_freed_memory() -> None:
    """Let glibc, on a CPU as device, reuse what a step frees: else the kernel clears pages anew in each.

    Measured on steps of the demo, one thread, processor time: 0.26 s against 0.30 with AdamW, 0.39 against 0.43 with
    Muon; 11,000 page faults against 43,000, and 1,000 against 32,000.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None  # musl has none
    if mallopt is not None:
        mallopt(-4, 0)  # M_MMAP_MAX: no block is mapped by itself, and so unmapped when it is freed
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: nothing at the heap's end is returned


def choose_precision(asked: Precision, device: torch.device) -> ChosenPrecision:
    """Resolve `auto`: bf16 autocast on a GPU that has it and on a CPU with AMX tiles, fp32 elsewhere.

    The rule is one of capabilities, because a resumed run and all ranks must find the same.

    Measured on a Xeon with AMX (torch 2.13, tokens a CPU-second of whole steps, one thread): 6.5 M parameters 3,770
    in bf16 against 2,310 in fp32; 3.2 M parameters 5,040 against 4,330. Validation loss of the latter after 512,000
    tokens: 6.39 against 6.49, so nothing is lost. A residual stream in bf16 loses nothing either: 4.097 and 4.082
    against 4.100 and 4.082 (two seeds, 3.1 M parameters, 307,200 tokens of stories), and activations are a tenth
    smaller.

    A CPU without AMX has no fast bf16 matrix product, even with `avx512_bf16`. Measured on such a Xeon (Sapphire Rapids
    without tiles, one thread, processor time): products of 1,024 x 192 x 4,096 at 79 GFLOP/s in bf16 against 138 in
    fp32, and six other shapes alike; steps of 3.1 M parameters in 0.56 s against 0.33 s with AdamW, in 0.85 s against
    0.60 s with Muon.

    Raises:
        InputError: the recipe requires bf16 and the GPU lacks it.
    """
    # Emulated bf16 is slower than fp32.
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if asked == "auto":
        has_amx = device.type == "cpu" and bool(torch.cpu.get_capabilities().get("amx_bf16"))
        return "bf16" if has_bf16 or has_amx else "fp32"
    if asked == "bf16" and device.type == "cuda" and not has_bf16:
        name = torch.cuda.get_device_name(device)
        raise InputError(f'train.precision = "bf16": {name} has no bf16. Choose "fp32" or "auto".')
    return asked


def autocast(precision: ChosenPrecision, device: torch.device) -> torch.autocast:
    """Return the context of a forward pass on a device; weights, gradients and optimizer state stay fp32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


@contextlib.contextmanager
def score_eagerly(asked: Precision, device: torch.device) -> Generator[None]:
    """Return a device's context of a forward pass that scores: a compiled model would be compiled for each shape."""
    # Without a compiled model the compiler is not loaded, which would take 2.8 s of a processor.
    loaded = "torch._dynamo" in sys.modules
    eager = torch.compiler.set_stance("force_eager") if loaded else contextlib.nullcontext()
    with eager, autocast(choose_precision(asked, device), device):
        yield


def share_batches(sizes: Sequence[int], most: int, total: int, progress: Progress) -> Iterator[tuple[slice, bool]]:
    """Yield the batches of texts that this rank scores, and for each whether it counts.

    Every rank makes equally many passes, as sharded weights need: one without work repeats the last batch.

    Args:
        sizes: the tokens of each text with its padding, the longest first: memory runs out at once or never.
        most: tokens of a batch, but at least one text.
        total: how many items the texts are of.
        progress: told how many items are done, and of how many.
    """
    batches: list[slice] = []
    first = 0
    while first < len(sizes):
        batches.append(slice(first, first + max(1, most // sizes[first])))
        first = batches[-1].stop
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    for first in range(0, len(batches), ranks):
        yield batches[min(first + rank, len(batches) - 1)], first + rank < len(batches)
        done = min(batches[: first + ranks][-1].stop, len(sizes))
        progress(done * total // len(sizes), total)


def add_over_ranks(tensor: torch.Tensor) -> None:
    """Add up a tensor over the ranks, in place; every rank calls it, with one on its device."""
    if dist.is_initialized():
        dist.all_reduce(tensor)


def largest_of_ranks(value: int, device: torch.device) -> int:
    """Return the largest value that any rank has; every rank calls it, with its device."""
    if not dist.is_initialized():
        return value
    tensor = torch.tensor(value, device=device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return int(tensor.item())


def wait_for_ranks() -> None:
    """Wait until every rank, with its own device, has reached this call."""
    if dist.is_initialized():
        dist.barrier()

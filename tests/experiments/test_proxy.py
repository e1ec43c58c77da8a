"""Trainings that share a machine: each holds a GPU of its own."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.builds import wait_until
from tokenmill.experiments.proxy import hold_gpu


def test_each_training_holds_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch):
    # Names that no other process of this machine holds: GPUs may be named by UUID.
    names = [f"GPU-{uuid.uuid4()}" for _ in range(2)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
    held: list[str | None] = []
    release = threading.Event()

    def train() -> None:
        with hold_gpu("auto") as gpu:
            held.append(gpu)
            release.wait(20)

    with ThreadPoolExecutor(3) as pool:
        first = [pool.submit(train) for _ in range(2)]
        wait_until(lambda: len(held) == 2, "two trainings to hold a GPU")
        assert not any(one.done() for one in first)
        third = pool.submit(train)
        threading.Event().wait(1.5)
        assert sorted(map(str, held)) == sorted(names)  # the third one waits
        release.set()
        third.result(timeout=20)
    assert len(held) == 3
    assert held[2] in names
    with hold_gpu("cpu") as gpu:
        assert gpu is None


@pytest.mark.skipif(Path("/proc/driver/nvidia/gpus").is_dir(), reason="this machine has GPUs: a training must hold one")
def test_without_gpus_none_is_held(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with hold_gpu("auto") as gpu:
        assert gpu is None

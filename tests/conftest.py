"""What all tests need: an interrupt that interrupts, also in a shell's background; folders; stores."""

import contextlib
import gc
import importlib
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.builds import Built, build_once
from tests.support.conversations import write_chat_recipe
from tests.support.servers.hub import Hub, use_hub
from tests.support.servers.hub_writes import WRITER
from tests.support.servers.objects import ObjectServer, moto_store

# Tests run side by side, also the processes that they start: threads of torch and BLAS would spin in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tables on a pipe are as wide as COLUMNS says. GNU readline sets it for child processes, when a library loads it.
with contextlib.suppress(ImportError):
    importlib.import_module("readline")
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# Such a shell has SIGINT ignored, which every process that a test starts would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


# A store waits for the disk at each file: on a busy disk twelve tests of flipped bits take 186 s, in memory 73. No test
# depends on it: none cuts the power, and the tests of a full disk mount one of their own.
SHARED_MEMORY = Path("/dev/shm")
MIN_FREE_BYTES = 6 << 30
"""The whole suite keeps less than half of this at any time: pytest removes the folder of a test that passed."""


def find_ram_folder() -> Path | None:
    """Return a folder in memory with room for the tests, or None.

    None where the machine has none, it is full or not writable, or it lets no program start (as Docker's own).
    """
    if not os.path.ismount(SHARED_MEMORY) or not os.access(SHARED_MEMORY, os.W_OK):
        return None
    held = os.statvfs(SHARED_MEMORY)
    free = min(held.f_bavail * held.f_frsize, psutil.virtual_memory().available)
    return None if held.f_flag & os.ST_NOEXEC or free < MIN_FREE_BYTES else SHARED_MEMORY


def pytest_configure(config: pytest.Config) -> None:
    """Put temporary folders in memory where there is room; the workers of pytest-xdist follow their controller."""
    if not hasattr(config, "workerinput") and not config.getoption("basetemp") and (folder := find_ram_folder()):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests without looking for garbage, which takes a third of the time and finds next to none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session")
def moto() -> Iterator[ObjectServer]:
    """Run an S3 server for the session; its buckets are shared by the tests of a process."""
    with moto_store() as server:
        yield server


@pytest.fixture(scope="session")
def chat_set(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return a set of conversations and prose, of the format `chatml`."""
    return build_once(tmp_path_factory, "chat", write_chat_recipe)


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """Return an empty folder on the disk, for a test that needs its slowness: `tmp_path` may be in memory."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-test-") as folder:
        yield Path(folder)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[Hub]:
    """Return a Hub that takes uploads, and is the Hub of this process, with a token that may write."""
    with Hub(store=tmp_path / "store") as server:
        use_hub(server.url, monkeypatch)
        monkeypatch.setenv("HF_TOKEN", WRITER)
        yield server

"""What all tests need: an interrupt that interrupts, also where a shell has started them in the background; stores."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.servers.objects import ObjectServer, moto_store

# Such a shell has SIGINT ignored, which every process that a test starts would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def moto() -> Iterator[ObjectServer]:
    """Run an S3 server for the session; its buckets are shared by the tests of a process."""
    with moto_store() as server:
        yield server

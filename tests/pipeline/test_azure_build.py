"""Azure Blob Storage, by its emulator: what a store must be able to do; a build with work folder and set there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shards.stores.object_store import open_objects, require_abilities
from tests.support.builds import build_here, digests_in, run_build
from tests.support.servers.azurite import azure_environment, azurite_store, make_container
from tokenmill.__main__ import main


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with azurite_store(tmp_path_factory.mktemp("azurite")) as server, pytest.MonkeyPatch.context() as monkeypatch:
        azure_environment(monkeypatch, server)
        yield make_container(server, "box")


def test_what_a_store_must_do(container: str) -> None:
    store = open_objects(f"{container}/probe")
    require_abilities(store)
    large = os.urandom(20 << 20)
    store.put("large", large)
    assert store.read("large") == large
    assert store.read_range("large", 1 << 20, 1 << 21) == large[1 << 20 : 1 << 21]
    store.put("folder/small", b"small")
    # A version that differed would have every file of a work folder read again to see whether it has changed.
    assert {file.name: file.version for file in store.list()} == {
        name: getattr(store.find(name), "version", None) for name in ("large", "folder/small")
    }
    assert [store.create("once", content) for content in (b"first", b"second")] == [True, False]
    assert store.read("once") == b"first"
    store.delete("absent")
    store.delete_all()
    assert list(store.list()) == []
    with pytest.raises(FileNotFoundError, match="does not exist"):
        store.read("large")


def test_work_and_set_in_a_container(recipe: Path, expected: dict[str, str], container: str) -> None:
    out = f"{container}/sets/small"
    run_build(recipe, out, "--workers", "2")
    assert digests_in(out) == expected
    assert build_here(recipe, out)["tasks_run"] == 0
    assert main(["validate", out]) == 0

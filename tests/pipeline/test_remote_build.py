"""Builds whose work folder and set lie in an object store: one driver at a time, and what a store must do."""

import json
import os
import time
from pathlib import Path

import pytest

from pipeline.builder.places import Lease
from shards.errors import InputError, RunError
from shards.stores.files import unique_name
from shards.stores.object_store import open_objects, require_abilities
from shards.stores.open import open_writable_store
from tests.support.builds import build_here, digests, wait_until
from tests.support.servers.objects import ObjectServer, Proxy, aws_environment

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def objects(recipe: Path, moto: ObjectServer) -> dict[str, bytes]:
    """Everything that a build leaves in a bucket, by name; its set is `set`."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        aws_environment(monkeypatch, moto.url)
        moto.reset()
        store = open_writable_store(moto.empty_bucket())
        build_here(recipe, f"{store}/set")
        return {file.name: store.read(file.name) for file in store.list()}


@pytest.fixture
def built(objects: dict[str, bytes], bucket: str) -> str:
    """The address of a set that is built, its work beside it."""
    store = open_writable_store(bucket)
    for name, content in objects.items():
        store.put(name, content)
    return f"{bucket}/set"


def test_a_smaller_set_takes_the_place_of_a_larger_one(recipe: Path, built: str, tmp_path: Path):
    smaller = ["--set", "mix.tokens=20000", "--set", "shards.tokens=8000"]
    before = digests(built)
    build_here(recipe, built, *smaller, "--prune")
    build_here(recipe, tmp_path / "set", *smaller)
    assert digests(built) == digests(tmp_path / "set")
    assert digests(built).keys() < before.keys()
    # The work folder holds what this recipe uses.
    entries = {file.name.split("/")[0] for file in open_writable_store(f"{built}.work/mix").list()}
    assert len(entries) == 1


def test_a_second_driver_is_refused(recipe: Path, built: str):
    lease = Lease(open_writable_store(f"{built}.work"))
    open_writable_store(built).delete_all()
    refused = build_here(recipe, built, expect=2)
    assert f"{built}.work: another build is running here: " in refused["stderr"]
    assert not list(open_writable_store(built).list())
    lease.close()
    build_here(recipe, built)


def holds(lease: Lease) -> bool:
    try:
        lease.check()
    except RunError:
        return False
    return True


def test_leases(bucket: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.builder.places.RENEW_SECONDS", 0.2)
    place, records = open_writable_store(f"{bucket}/work"), open_writable_store(f"{bucket}/work.lease")
    first = Lease(place)
    first.check()
    with pytest.raises(InputError, match=r"another build is running here: \S+, seen \d s ago"):
        Lease(place)
    # Another host takes over a lease that it finds stale: the first one notices.
    owner = unique_name().replace(unique_name().split("-")[0], "elsewhere")
    records.put("00000002.json", json.dumps({"owner": owner, "time": time.time()}).encode())
    wait_until(lambda: not holds(first), "the first to notice")
    with pytest.raises(RunError, match="elsewhere"):
        first.check()
    first.close()
    assert [file.name for file in records.list()] == ["00000001.json", "00000002.json"]
    with pytest.raises(InputError, match="try again in"):
        Lease(place)
    records.put("00000002.json", json.dumps({"owner": owner, "time": time.time() - 100}).encode())
    with_last = Lease(place)
    assert [file.name for file in records.list()] == ["00000003.json"]
    with_last.close()
    assert not list(records.list())


def test_a_store_that_creates_twice_is_refused(
    recipe: Path, moto: ObjectServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with Proxy(moto, ignores=("if-none-match",)) as proxy:
        aws_environment(monkeypatch, proxy.url)
        for options in ([f"{bucket}/set"], [str(tmp_path / "set"), "--work", f"{bucket}/work"]):
            refused = build_here(recipe, *options, expect=2)["stderr"]
            assert "cannot create a file only if it is absent" in refused
            assert "Use Amazon S3" in refused
        assert not list(open_writable_store(bucket).list())
    assert not (tmp_path / "set").exists()


def test_fetched_files_need_a_folder(recipe: Path, bucket: str):
    text = recipe.read_text().replace('name = "docs"', 'name = "docs"\ncontent = "software-heritage"')
    fetching = recipe.with_name("fetching.toml")
    fetching.write_text(text.replace('text = "body.content"\n', ""))
    refused = build_here(fetching, f"{bucket}/set", expect=2)
    assert "so it must be a folder of this machine" in refused["stderr"]
    assert not list(open_writable_store(bucket).list())


def test_what_azure_must_do(container: str):
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

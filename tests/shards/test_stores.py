"""Stores that are written to: whole files, exactly one winner of a creation, listings, deletion."""

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from shards.stores.files import is_abandoned, unique_name
from shards.stores.object_store import require_abilities
from shards.stores.open import open_writable_store
from shards.stores.store import FolderStore, WritableStore
from tests.support.servers.objects import BUCKET


@pytest.fixture(params=["folder", "s3"])
def store(request, tmp_path) -> WritableStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "place")
    request.getfixturevalue("server")
    return open_writable_store(f"s3://{BUCKET}/place")


def listing(store: WritableStore) -> dict[str, int]:
    return {file.name: file.bytes for file in store.list()}


def test_a_file_is_written_whole_and_replaced(store, tmp_path):
    (tmp_path / "source").write_bytes(b"from a file")
    store.put("a/b/one", b"from bytes")
    store.put("two", tmp_path / "source")
    store.put("none", b"")
    assert store.read("none") == b""
    store.delete("none")
    assert store.read("a/b/one") == b"from bytes"
    assert store.read_range("two", 5, 11) == b"a file"
    assert listing(store) == {"a/b/one": 10, "two": 11}
    before = {file.name: file.version for file in store.list()}
    store.put("two", b"another and longer")
    assert store.size("two") == 18
    after = {file.name: file.version for file in store.list()}
    assert after["a/b/one"] == before["a/b/one"]
    assert after["two"] != before["two"]


def test_one_of_many_creators_wins_and_its_content_stays(store):
    for name in ("one", "deep/er/two"):
        contents = [f"writer {number}".encode() * 1000 for number in range(16)]
        with ThreadPoolExecutor(16) as pool:
            won = list(pool.map(lambda content, name=name: store.create(name, content), contents))
        assert won.count(True) == 1
        assert store.read(name) == contents[won.index(True)]
        assert not store.create(name, b"late")
        assert store.read(name) == contents[won.index(True)]
    assert sorted(listing(store)) == ["deep/er/two", "one"]


def test_deletion(store):
    for name in ("a/1", "a/2", "b"):
        store.put(name, b"x")
    store.delete("b")
    store.delete("b")
    assert sorted(listing(store)) == ["a/1", "a/2"]
    store.child("a").delete_all()
    store.child("a").delete_all()
    assert listing(store) == {}
    with pytest.raises(FileNotFoundError):
        store.read("a/1")


def test_a_listing_leaves_out_what_is_being_written(tmp_path):
    store = FolderStore(tmp_path)
    store.put("whole", b"x")
    (tmp_path / ".half.123.tmp").write_bytes(b"y")
    (tmp_path / ".task.tmp").mkdir()
    (tmp_path / ".task.tmp" / "file").write_bytes(b"y")
    assert listing(store) == {"whole": 1}


def test_a_range_that_a_file_does_not_have_is_an_error_and_never_fewer_bytes(store):
    store.put("file", b"0123456789")
    assert store.read_range("file", 0, 10) == b"0123456789"
    assert store.read_range("file", 4, 4) == b""
    for start, stop in ((5, 11), (10, 11), (20, 30)):
        with pytest.raises(OSError, match=r"file: ends .*before"):
            store.read_range("file", start, stop)
    for read in (store.size, store.read, lambda name: store.read_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError, match="absent"):
            read("absent")


def test_a_store_leaves_nothing_of_its_probe_is_its_address_and_can_be_sent_to_a_process(store):
    require_abilities(store)
    assert listing(store) == {}
    assert not isinstance(store, FolderStore) or list(store.folder.iterdir()) == []
    store.put("one", b"1")
    sent = pickle.dumps(store)
    assert len(sent) < 500
    assert pickle.loads(sent).read("one") == b"1"
    assert open_writable_store(str(store)) == store


def test_a_name_is_abandoned_when_its_process_has_ended():
    assert not is_abandoned(unique_name())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        name = unique_name().replace(f"-{os.getpid()}-", f"-{child.pid}-")
        assert not is_abandoned(name)
        child.kill()
    assert is_abandoned(name)

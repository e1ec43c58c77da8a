"""The cache of remote shards: whole verified files, never above its limit, shared by processes that may die.

The set lies on a Hub on loopback. Processes are real ones.
"""

import contextlib
import errno
import hashlib
import multiprocessing
import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import shards
from shards.errors import InputError
from shards.stores import retry
from shards.stores.cache import PART_SUFFIX, Cache
from shards.stores.hub_store import HubStore
from shards.terminal import reporter
from tests.support.servers.hub import Hub, use_hub
from tests.support.shard_sets import cut_train, write_set

URL = "hf://datasets/tester/set"


@pytest.fixture(scope="module")
def whole(_shared_plan, tmp_path_factory):
    """Return the folder of a set of one validation and six training shards. Read only."""
    folder = tmp_path_factory.mktemp("remote") / "set"
    write_set(folder, cut_train(_shared_plan, 6))
    return folder


@pytest.fixture(scope="module")
def _server():
    with Hub() as server:
        yield server


@pytest.fixture
def hub(_server, whole, monkeypatch):
    """Return a Hub with the set, which is the Hub of this process; files are fetched in small ranges."""
    _server.publish("tester/set", whole)
    use_hub(_server.url, monkeypatch)
    monkeypatch.setattr(HubStore, "request_bytes", 40_000)
    _server.forget()
    yield _server
    _server.gone()
    _server.back()
    _server.faults.off()
    _server.latency_s = 0.0


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def said():
    """Return what the reporter of this process is told."""
    told = []
    before = reporter.report_to(told.append)
    yield told
    reporter.report_to(before)


def open_cached(folder, limit=10**9):
    return shards.open_set(URL, cache=Cache(folder, limit))


def token_files(whole):
    return {shard.name: shard.entry.files.tokens.bytes for shard in shards.open_set(whole).shards}


def two_largest(whole):
    return sum(sorted(token_files(whole).values())[-2:])


def check_tokens(shard):
    assert hashlib.sha256(shard.read().tobytes()).hexdigest() == shard.entry.tokens_sha256


def kept(folder):
    """Return the size of every file that is kept, or is being fetched."""
    found = {}
    with contextlib.suppress(FileNotFoundError):  # a folder that was removed
        for path in folder.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                found[path] = path.stat().st_size
    return found


def cached_path(folder, shard_set, shard):
    return folder / shard_set.manifest_sha256 / shard.entry.files.tokens.sha256


def fetched_bytes(hub):
    return hub.body_bytes(r"/cdn/.*\.zst")


def most_bytes(folder, seconds):
    """Return the most bytes in a folder in the next seconds; two equal listings, as no file came or went in between."""
    most, before, end = 0, {}, time.monotonic() + seconds
    while time.monotonic() < end:
        found = kept(folder)
        if found == before:
            most = max(most, sum(found.values()))
        before = found
    return most


def read_in_process(url, folder, limit, names, repeats, seed, request_bytes=40_000):
    """Read shards in a random order and check their tokens; the function of a process."""
    use_hub(url, pytest.MonkeyPatch())  # the fork server began before this Hub
    HubStore.request_bytes = request_bytes
    shard_set = open_cached(folder, limit)
    rng = random.Random(seed)
    for _ in range(repeats):
        for name in rng.sample(names, len(names)):
            check_tokens(shard_set.shard(name))


@pytest.fixture(scope="module")
def processes():
    """Return the context that starts processes as forks of one that has imported what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.shards.test_cache", "huggingface_hub.hf_file_system"])
    return context


# --- One process ---


def test_shards_are_those_of_the_disk_and_are_fetched_once(hub, whole, folder):
    local, remote = shards.open_set(whole), open_cached(folder)
    hub.forget()
    for mine, other in zip(remote.shards, local.shards, strict=True):
        assert (mine.read() == other.read()).all()
        assert (mine.read(5, 90) == other.read(5, 90)).all()
        assert mine.documents().equals(other.documents())
    listed = [file for shard in local.shards for file in shard.entry.files.entries[:2]]
    assert hub.body_bytes("/cdn/") == sum(file.bytes for file in listed)
    assert sorted(kept(folder).values()) == sorted(file.bytes for file in listed)
    assert remote.manifest_sha256 == local.manifest_sha256
    assert (remote.vocabulary.text_lengths() == local.vocabulary.text_lengths()).all()

    hub.forget()
    for shard in open_cached(folder).shards:
        check_tokens(shard)
    assert fetched_bytes(hub) == 0


def test_the_files_taken_longest_ago_go_first(hub, whole, folder):
    sizes = token_files(whole)
    names = [name for name in sizes if name.startswith("train")]
    limit = sum(sizes[name] for name in names[:3]) + 2_000  # three of them
    assert limit < sum(sorted(sizes[name] for name in names)[:4])
    shard_set = open_cached(folder, limit)
    for name in [*names[:3], names[0], names[3]]:
        shard_set.shard(name).read()
    paths = {name: cached_path(folder, shard_set, shard_set.shard(name)) for name in names}
    assert {name for name, path in paths.items() if path.exists()} == {names[0], names[2], names[3]}


def test_a_file_that_is_removed_while_it_is_read_stays_readable(hub, whole, folder):
    shard_set = open_cached(folder, two_largest(whole))
    first, *others = shard_set.splits["train"]
    path = cached_path(folder, shard_set, first)
    with shard_set.store.hold(first.tokens_file.name) as held:
        for other in others:
            other.read()
        assert not path.exists()
        assert hashlib.sha256(held.store.read(held.name)).hexdigest() == first.entry.files.tokens.sha256


@pytest.mark.parametrize("change", ["flip", "cut", "empty"])
def test_a_file_that_changed_in_the_cache_is_fetched_again_and_said(hub, whole, folder, said, change):
    shard_set = open_cached(folder)
    shard = shard_set.shards[1]
    for reader in (shard_set, open_cached(folder)):  # the process that verified it, and another one
        shard.read()
        path = cached_path(folder, shard_set, shard)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes({"flip": content, "cut": content[:-1], "empty": b""}[change])
        hub.forget()
        check_tokens(reader.shards[1])
        assert fetched_bytes(hub) == path.stat().st_size
        assert "damaged in the cache" in said.pop()
        assert said == []


def test_wrong_bytes_from_the_store_are_fetched_again_then_refused(hub, whole, folder):
    shard = open_cached(folder).shards[1]
    path = whole / shard.tokens_file.name
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    ranges = -(-len(content) // 40_000)
    hub.faults.on(f"/cdn/.*{path.name}", body=bytes(content), times=ranges)
    check_tokens(shard)
    assert fetched_bytes(hub) == 2 * len(content)

    shutil.rmtree(folder)
    hub.faults.on(f"/cdn/.*{path.name}", body=bytes(content))
    with pytest.raises(shards.ShardSetError, match=rf"^{path.name}: fetched twice, with sha256 \w+; expected"):
        open_cached(folder).shards[1].read()
    assert kept(folder) == {}


def test_two_versions_of_a_set_do_not_mix(hub, whole, folder, plan, tmp_path):
    before = open_cached(folder)
    before.shards[1].read()
    write_set(tmp_path / "other", cut_train(plan, 5))
    hub.publish("tester/set", tmp_path / "other")
    after = open_cached(folder)
    assert after.manifest_sha256 != before.manifest_sha256
    for shard_set in (after, before):
        for shard in shard_set.shards:
            check_tokens(shard)
    assert {path.parent.name for path in kept(folder)} == {before.manifest_sha256, after.manifest_sha256}


# --- What is refused, and what fails ---


def test_a_limit_below_two_shards_is_refused_with_the_numbers(hub, whole, folder):
    needed = two_largest(whole)
    with pytest.raises(
        InputError, match=f"limit is {needed - 1:,} bytes, less than two shards.*at least {needed:,} bytes"
    ):
        open_cached(folder, needed - 1)
    check_tokens(open_cached(folder, needed).shards[1])


def test_fetches_that_nobody_needs_end_at_once(hub, folder, monkeypatch):
    monkeypatch.setattr(retry, "GIVE_UP_S", 60.0)
    shard_set = open_cached(folder)
    hub.gone()
    with ThreadPoolExecutor(2) as pool:
        reads = [pool.submit(shard_set.shards[index].read) for index in (1, 1)]
        time.sleep(0.5)
        began = time.monotonic()
        shard_set.store.stop_fetching()
        for read in reads:
            with pytest.raises(InputError, match="stopped"):
                read.result()
    assert time.monotonic() - began < 5
    hub.back()
    check_tokens(shard_set.shards[1])


def test_a_full_disk_is_refused_before_the_fetch(hub, folder, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    shard_set = open_cached(folder)
    hub.forget()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(InputError, match=r"train-00001.bin.zst needs .* bytes, .* are free. Free some, lower"):
        shard_set.shards[1].read()
    assert fetched_bytes(hub) == 0


# --- Several processes ---


def test_one_process_fetches_a_file_and_the_others_wait_for_it(hub, whole, folder, processes):
    hub.latency_s = 0.05
    hub.forget()
    workers = [
        processes.Process(target=read_in_process, args=(hub.url, folder, 10**9, ["train-00001"], 1, i))
        for i in range(4)
    ]
    for worker in workers:
        worker.start()
    assert [worker.join() or worker.exitcode for worker in workers] == [0] * 4
    assert fetched_bytes(hub) == token_files(whole)["train-00001"]


def test_processes_killed_at_random_moments_leave_nothing_that_is_not_whole(hub, whole, folder, processes):
    hub.latency_s = 0.005
    names, limit = list(token_files(whole)), two_largest(whole)
    moments, halves, most = random.Random(12), 0, 0
    for seed in range(6):
        arguments = (hub.url, folder, limit, names, 100, seed, 10_000)
        workers = [processes.Process(target=read_in_process, args=arguments) for _ in range(2)]
        for worker in workers:
            worker.start()
        hub.forget()
        deadline = time.monotonic() + 30
        while not any("/cdn/" in one.path for one in hub.requests) and time.monotonic() < deadline:
            time.sleep(0.002)
        most = max(most, most_bytes(folder, moments.uniform(0, 0.1)))
        workers[0].kill()  # the other one goes on with what it left
        workers[0].join()
        most = max(most, most_bytes(folder, moments.uniform(0, 0.1)))
        assert workers[1].is_alive(), workers[1].exitcode
        workers[1].kill()
        workers[1].join()
        found = kept(folder)
        halves += sum(path.name.endswith(PART_SUFFIX) for path in found)
        for path in found:
            if not path.name.startswith("."):
                assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    assert halves > 1, "few kills hit a fetch"
    assert 0 < most <= limit
    for name in names:
        check_tokens(open_cached(folder, limit).shard(name))
    assert not [path for path in kept(folder) if path.name.startswith(".")]

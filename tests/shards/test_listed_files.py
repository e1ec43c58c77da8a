"""Files that are not those that the manifest lists: every reader tells, when it opens the set or reads a shard."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shards import ShardSet, ShardSetError, open_set
from shards.errors import InputError
from shards.format.codec import SeekableWriter
from shards.format.token_set import write_token_set
from shards.torch import TokenStream, TokenWindows
from shards.trace.search import Query
from shards.trace.trace import trace
from tests.support.opened import record_opened
from tests.support.servers.hub import Hub, use_hub
from tests.support.token_sets import EOS_ID

URL = "hf://datasets/tester/set"
SEQ_LEN = 32
Damage = Callable[[Path], None]


def write_tokens(path: Path, tokens: np.ndarray) -> None:
    """Write a well-formed tokens file in the place of another."""
    with path.open("wb") as file:
        writer = SeekableWriter(file)
        writer.write(tokens)
        writer.close()


def replaced(folder: Path) -> None:
    """Write frames of other tokens over a shard: as many of them, but another number of bytes."""
    path = folder / "train-00001.bin.zst"
    before = path.stat().st_size
    shard = open_set(folder).shard("train-00001")
    write_tokens(path, np.arange(shard.num_tokens).astype(shard.dtype) % 256)
    assert path.stat().st_size != before


def missing(folder: Path) -> None:
    """Remove a shard's tokens file."""
    (folder / "train-00001.bin.zst").unlink()


TOLD = {
    replaced: r"^train-00001\.bin\.zst: [\d,]+ bytes in {place}; expected [\d,]+ by the manifest\. ",
    missing: r"^train-00001\.bin\.zst: in the manifest, but not in {place}\. ",
}
REMEDIES = {
    "folder": r"Copy, pull or build it again; tokenmill validate {place} finds every damaged file\. \[",
    "store": r"Push or build it again; tokenmill validate {place} finds every damaged file\. \[",
}


def told(damage: Damage, place: Path | str, kind: str = "folder") -> str:
    """Return the pattern of the error of a set at a place."""
    return (TOLD[damage] + REMEDIES[kind]).format(place=re.escape(str(place)))


@pytest.fixture(scope="module", params=TOLD, ids=lambda damage: damage.__name__)
def damaged(request, good_set, tmp_path_factory):
    """A set with one damaged shard, and the damage. Read only."""
    folder = Path(shutil.copytree(good_set, tmp_path_factory.mktemp("damaged") / "set"))
    request.param(folder)
    return folder, request.param


READERS: dict[str, Callable[[Path, Path], object]] = {
    "open_set": lambda folder, out: open_set(folder),
    "TokenWindows": lambda folder, out: TokenWindows(folder, seq_len=SEQ_LEN),
    "TokenStream": lambda folder, out: TokenStream(folder, seq_len=SEQ_LEN),
    "trace": lambda folder, out: trace(folder, Query("token", "5")),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_shard_of_another_size_or_none_is_told_when_the_set_is_opened(damaged, tmp_path, reader):
    folder, damage = damaged
    with record_opened() as opened, pytest.raises(ShardSetError, match=told(damage, folder)) as caught:
        READERS[reader](folder, tmp_path / "out")
    assert [problem.kind for problem in caught.value.problems] == [
        {replaced: "file_size", missing: "file_missing"}[damage]
    ]
    assert not [path for path in opened if path.endswith((".zst", ".parquet"))]  # no shard is read for it


def test_a_set_on_the_hub_is_compared_with_its_listing(damaged, monkeypatch):
    folder, damage = damaged
    with Hub() as server:
        server.publish("tester/set", folder)
        use_hub(server.url, monkeypatch)
        with pytest.raises(ShardSetError, match=told(damage, URL, "store")):
            open_set(URL)


@pytest.mark.parametrize("damage", TOLD)
def test_a_shard_that_changes_after_the_opening_is_told_when_it_is_first_read(good_set, tmp_path, damage):
    folder = Path(shutil.copytree(good_set, tmp_path / "set"))
    windows, shard = TokenWindows(folder, seq_len=SEQ_LEN), open_set(folder).shard("train-00001")
    damage(folder)
    readers = (shard.read, lambda: list(shard.iter_tokens()), lambda: windows.read(range(len(windows))))
    for read in readers:
        with pytest.raises(ShardSetError, match=told(damage, folder)):
            read()
    (folder / "train-00001.docs.parquet").unlink()
    with pytest.raises(ShardSetError, match=r"docs\.parquet: in the manifest, but not in .* Copy, pull or build it"):
        shard.documents()


def incompressible(seed: int) -> np.ndarray:
    """Return tokens that compress to as many bytes as any others from here."""
    tokens = np.random.default_rng(seed).integers(1, 65_536, 4_000).astype(np.uint16)
    tokens[99::100] = EOS_ID
    return tokens


@pytest.fixture
def same_size(tmp_path) -> ShardSet:
    """A set of two shards, the second replaced by other tokens and rows in files of the same sizes."""
    shards = [incompressible(seed) for seed in (0, 1)]
    folder = write_token_set(tmp_path / "set", {"train": shards}).path
    write_tokens(folder / "train-00001.bin.zst", incompressible(2))
    table = folder / "train-00001.docs.parquet"
    content = table.read_bytes()
    changed = content.replace(b"parquet-cpp-arrow", b"parquet-CPP-arrow")
    assert changed != content
    table.write_bytes(changed)
    return open_set(folder)


READS = {
    "read": lambda shard_set: shard_set.shards[1].read(),
    "iter_tokens": lambda shard_set: list(shard_set.shards[1].iter_tokens()),
    "documents": lambda shard_set: shard_set.shards[1].documents(),
    "TokenWindows": lambda shard_set: TokenWindows(shard_set, seq_len=SEQ_LEN).read(range(200)),
}


@pytest.mark.parametrize("reads", READS)
def test_a_digest_finds_what_a_size_does_not(same_size, reads):
    READS[reads](same_size)  # sizes are equal: read as it is
    strict = open_set(same_size.path, verify="sha256")
    strict.shards[0].read()
    with pytest.raises(ShardSetError, match=r"^train-00001\.\S+: sha256 is \w+; expected \w+ by the manifest\. Copy"):
        READS[reads](strict)


def test_verify_is_one_of_two_words_and_an_open_set_has_its_own(good_set):
    for opener in (open_set, lambda place, verify: TokenWindows(place, seq_len=SEQ_LEN, verify=verify)):
        with pytest.raises(InputError, match=r"verify = 'sha265': unknown\. Did you mean 'sha256'\?"):
            opener(good_set, verify="sha265")
    strict = open_set(good_set, verify="sha256")
    assert TokenStream(strict, seq_len=SEQ_LEN).windows.shard_set.verify == "sha256"
    with pytest.raises(InputError, match=r"verify = 'sha256': the set is open already\. Give open_set\(\.\.\., verify"):
        TokenWindows(open_set(good_set), seq_len=SEQ_LEN, verify="sha256")

"""Sets that somebody made to cost their reader time or memory: each is refused by name, within bounds."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shards import ShardSetError, open_set
from shards.convert.export import export_set
from shards.format import reader
from shards.format.shard import iter_documents
from shards.format.writer import write_token_set
from shards.torch import TokenWindows
from shards.trace.locate import find_places
from shards.validation.validate import validate
from tests.support.faults import edit
from tests.support.fuzz.damage import reseal
from tests.support.token_sets import count_up
from tokenmill.__main__ import main

MANY = 2_000_000

HOSTILE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "list": lambda _: {"shards": [0] * MANY},
    "mix": lambda _: {"mix": [{}] * MANY},
    "keys": lambda _: dict.fromkeys(map(str, range(MANY // 4)), 0),
    "allowed keys": lambda _: dict.fromkeys(map(str, range(100_000)), 0),
    "dropped": lambda source: {"sources": [source | {"dropped": dict.fromkeys(map(str, range(MANY // 4)), -1)}]},
    "deep": lambda _: {"name": "DEEP"},
}
"""Keys of a manifest, some of them by its first source; "DEEP" stands for lists in lists."""


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest_costs_little_to_refuse(good_set: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "set").mkdir()
    manifest = json.loads((good_set / "manifest.json").read_text())
    content = json.dumps(manifest | HOSTILE[what](manifest["sources"][0])).replace('"DEEP"', "[" * MANY)
    (tmp_path / "set/manifest.json").write_text(content)
    line = f"ulimit -v 1500000; exec '{sys.executable}' -m tokenmill validate --level quick '{tmp_path}/set'"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "[manifest_invalid]" in done.stdout) == (1, True), done.stdout[-500:] + done.stderr[-500:]
    assert 1 <= done.stdout.count("error: ") <= 21
    if what == "allowed keys":
        assert "99,980 more faults" in done.stdout


def test_of_many_missing_shards_the_first_are_told_and_the_others_counted(
    good_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, count = shutil.copytree(good_set, tmp_path / "set"), 5000
    shard = json.dumps(json.loads((folder / "manifest.json").read_text())["shards"][0])
    many = [json.loads(shard.replace("train-00000", f"train-{number:05}")) for number in range(count)]
    edit(folder, lambda manifest: manifest.update(shards=many))
    for path in folder.glob("train-*"):
        path.unlink()
    assert main(["validate", str(folder), "--threads", "1"]) == 1
    told = capsys.readouterr().out
    assert told.count("[file_missing]") == 21
    assert f"the last of {3 * count - 20:,} more: in the manifest, but not in the folder. Copy or build it" in told
    assert main(["validate", str(folder), "--threads", "1", "--json"]) == 1
    kinds = [problem["kind"] for problem in json.loads(capsys.readouterr().out)["problems"]]
    assert (kinds.count("file_missing"), max(map(kinds.count, kinds))) == (21, 21)
    with pytest.raises(ShardSetError) as caught:
        open_set(folder)
    assert 21 <= str(caught.value).count("\n") + 1 <= 42
    assert f"train-{count - 1:05}" in str(pickle.loads(pickle.dumps(caught.value)))


def link_to_a_pipe(place: Path) -> None:
    os.mkfifo(place.parent.parent / "pipe")
    place.symlink_to(place.parent.parent / "pipe")


NO_FILES = {
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "link to a device": lambda place: place.symlink_to("/dev/zero"),
    "link to a pipe": link_to_a_pipe,
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json", "recipe.json", "train-00000.json"])
@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused_by_each_reader(good_set: Path, tmp_path: Path, kind: str, name: str) -> None:
    folder = shutil.copytree(good_set, tmp_path / "set")
    (folder / name).unlink()
    NO_FILES[kind](folder / name)
    assert "file_unreadable" in {problem.kind for problem in validate(folder).problems}
    told = "a folder; expected" if kind == "folder" else "a pipe, a device or a socket"
    with pytest.raises(ShardSetError, match=told):
        open_set(folder)


@pytest.mark.parametrize("name", ["train-00000.bin.zst", "train-00000.docs.parquet", "tokenizer.json"])
@pytest.mark.timeout(20)
def test_a_file_that_becomes_a_pipe_is_not_waited_for(good_set: Path, tmp_path: Path, name: str) -> None:
    shard_set = open_set(shutil.copytree(good_set, tmp_path / "set"))
    (shard_set.path / name).unlink()
    os.mkfifo(shard_set.path / name)
    shard = shard_set.shards[0]
    reads = [shard.read, shard.documents] if name.startswith("train") else [shard_set.tokenizer]
    failed = 0
    for read in (*reads, lambda: export_set(shard_set, tmp_path / "out", layout="nanogpt")):
        try:
            read()
        except ShardSetError as error:
            failed += "a pipe, a device or a socket" in str(error)
    assert failed >= (2 if "bin" in name or name == "tokenizer.json" else 1)


def test_a_large_tokenizer_is_not_read(good_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard_set = open_set(good_set)
    monkeypatch.setattr(reader, "MAX_TOKENIZER_BYTES", 1000)
    for read in (
        shard_set.tokenizer,
        lambda: shard_set.vocabulary,
        lambda: export_set(shard_set, tmp_path / "out", layout="nanogpt"),
    ):
        with pytest.raises(ShardSetError, match="expected at most 1,000"):
            read()


@pytest.mark.parametrize(("column", "size"), [("unit", 20_000_000), ("source", 20_000_000), ("unit", 65_537)])
def test_a_long_value_in_a_document_table_is_refused(tmp_path: Path, column: str, size: int) -> None:
    shard_set = write_token_set(tmp_path / "set", {"train": [count_up(1000)], "val": [count_up(100)]})
    path = tmp_path / "set/train-00000.docs.parquet"
    rows = pq.read_table(path)
    place = rows.schema.get_field_index(column)
    for length in (1 << 16, size):
        names = pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int32()), pa.array(["x" * length]))
        pq.write_table(rows.set_column(place, rows.schema.field(place), pa.chunked_array([names])), path)
        reseal(tmp_path / "set")
        shard_set = open_set(tmp_path / "set")
        if length == 1 << 16:
            assert sum(len(batch) for batch in iter_documents(shard_set.shards[0])) == len(rows)
            assert shard_set.shards[0].documents().num_rows == len(rows)
    for read in (shard_set.shards[0].documents, lambda: find_places(shard_set.shards[0], [3])):
        with pytest.raises(ShardSetError, match=f"values? of {column} (has|take) .* bytes.*; expected at most") as told:
            read()
        assert len(str(told.value)) < 1000
        assert str(told.value).count("[document_table]") == 1
    problems = validate(tmp_path / "set", level="full").problems
    assert "document_table" in {problem.kind for problem in problems}
    assert max(len(str(problem)) for problem in problems) < 1000


def test_training_names_the_shard_and_the_id_outside_the_vocabulary(tmp_path: Path) -> None:
    tokens = np.minimum(count_up(2000, vocab_size=1000), 500).astype("<u2")
    shard_set = write_token_set(tmp_path / "set", {"train": [tokens, tokens], "val": [count_up(100)]})
    edit(tmp_path / "set", lambda manifest: manifest.update(vocab_size=500))
    windows = TokenWindows(open_set(tmp_path / "set"), seq_len=64, epochs=1)
    with pytest.raises(ShardSetError, match=r"train-0000\d\.bin\.zst: holds the id 500; expected less than"):
        [windows[number] for number in range(len(windows))]
    assert shard_set.vocab_size > 500

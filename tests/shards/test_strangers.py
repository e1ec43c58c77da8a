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

from shards import ShardSet, ShardSetError, open_set
from shards.convert.export import export_set
from shards.errors import Problem
from shards.format import reader
from shards.format.writer import write_token_set
from shards.torch import TokenWindows
from shards.trace.locate import find_places
from shards.validation.validate import ValidationResult, validate
from tests.support.faults import edit
from tests.support.fuzz.damage import reseal
from tests.support.token_sets import count_up

MANY = 2_000_000

HOSTILE: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "list": lambda _: {"shards": [0] * MANY},
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


def test_of_many_problems_the_first_are_told_and_the_others_counted() -> None:
    many = [Problem("file_missing", f"train-{number:05}", "absent") for number in range(5000)]
    told = ValidationResult("set", "quick", many).to_dict()["problems"]
    assert told[-1] == {"kind": "file_missing", "where": "train-04999", "message": "the last of 4,980 more: absent"}
    error = pickle.loads(pickle.dumps(ShardSetError(many)))
    assert [problem.to_dict() for problem in error.problems] == told
    assert len(told) == 21


READS: dict[str, Callable[[ShardSet], Any]] = {
    "train-00000.bin.zst": lambda shard_set: shard_set.shards[0].read(),
    "train-00000.docs.parquet": lambda shard_set: shard_set.shards[0].documents(),
    "tokenizer.json": lambda shard_set: shard_set.tokenizer(),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.timeout(20)
def test_a_file_that_becomes_a_pipe_is_not_waited_for(good_set: Path, tmp_path: Path, name: str) -> None:
    shard_set = open_set(shutil.copytree(good_set, tmp_path / "set"))
    (shard_set.path / name).unlink()
    os.mkfifo(shard_set.path / name)
    for read in (READS[name], lambda shard_set: export_set(shard_set, tmp_path / "out", layout="parquet")):
        with pytest.raises(ShardSetError, match="a pipe, a device or a socket"):
            read(shard_set)


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


@pytest.mark.parametrize(
    ("column", "size"), [("unit", 1 << 16), ("unit", 65_537), ("unit", 20_000_000), ("source", 20_000_000)]
)
def test_a_long_value_in_a_document_table_is_refused(tmp_path: Path, column: str, size: int) -> None:
    write_token_set(tmp_path / "set", {"train": [count_up(1000)], "val": [count_up(100)]})
    path = tmp_path / "set/train-00000.docs.parquet"
    rows = pq.read_table(path)
    place = rows.schema.get_field_index(column)
    names = pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int32()), pa.array(["x" * size]))
    pq.write_table(rows.set_column(place, rows.schema.field(place), pa.chunked_array([names])), path)
    reseal(tmp_path / "set")
    shard = open_set(tmp_path / "set").shards[0]
    if size == 1 << 16:  # the longest that is read
        assert len(shard.documents()) == len(rows)
        return
    for read in (shard.documents, lambda: find_places(shard, [3])):
        with pytest.raises(ShardSetError, match=f"values? of {column} (has|take) .* bytes.*; expected at most") as told:
            read()
        assert str(told.value).count("[document_table]") == 1
    problems = validate(tmp_path / "set", level="full").problems
    assert "document_table" in {problem.kind for problem in problems}
    assert max(len(str(problem)) for problem in [*problems, *told.value.problems]) < 1000


def test_training_names_the_shard_and_the_id_outside_the_vocabulary(tmp_path: Path) -> None:
    tokens = np.minimum(count_up(2000, vocab_size=1000), 500).astype("<u2")
    shard_set = write_token_set(tmp_path / "set", {"train": [tokens, tokens], "val": [count_up(100)]})
    edit(tmp_path / "set", lambda manifest: manifest.update(vocab_size=500))
    windows = TokenWindows(open_set(tmp_path / "set"), seq_len=64, epochs=1)
    with pytest.raises(ShardSetError, match=r"train-0000\d\.bin\.zst: holds the id 500; expected less than"):
        [windows[number] for number in range(len(windows))]
    assert shard_set.vocab_size > 500

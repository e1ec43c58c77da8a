"""Sets that somebody made to cost their reader time or memory: each is refused by name, within bounds."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shards import ShardSetError
from shards.errors import Problem
from shards.validation.validate import ValidationResult

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
def test_a_hostile_manifest_costs_little_to_refuse(good_set: Path, tmp_path: Path, what: str):
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


def test_of_many_problems_the_first_are_told_and_the_others_counted():
    many = [Problem("file_missing", f"train-{number:05}", "absent") for number in range(5000)]
    told = ValidationResult("set", "quick", many).to_dict()["problems"]
    assert told[-1] == {"kind": "file_missing", "where": "train-04999", "message": "the last of 4,980 more: absent"}
    error = pickle.loads(pickle.dumps(ShardSetError(many)))
    assert [problem.to_dict() for problem in error.problems] == told
    assert len(told) == 21

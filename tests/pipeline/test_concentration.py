"""Sixty planted documents, end to end: the audit lists them, a build with the list drops exactly what is listed."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import xxhash

import shards
from tests.support.builds import build_here, call_here, one_worker, real_documents
from tests.support.planted import LISTS, LOGS, TABLES, TRIPLES, plant
from tests.support.recipes import source, write_recipe
from tokenmill.__main__ import main

pytestmark = pytest.mark.long


MOST_OTHERS = 0.02
"""Share of the other documents that may be listed: those of real text that are full of words of their own."""


def write_source(folder: Path, texts: list[str], *, vocab_size: int) -> Path:
    """Write texts as JSON lines, and a recipe of a set of all of them."""
    rows = [json.dumps({"text": text}) for text in dict.fromkeys(texts)]
    (folder / "text.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    sizes = {"split": {"val_tokens": 20_000}, "shards": {"tokens": 1_000_000}}
    tokenizer = {"vocab_size": vocab_size}
    return write_recipe(folder / "recipe.toml", source("text", "text.jsonl"), tokenizer=tokenizer, **sizes)


def hashes_of(path: Path) -> set[str]:
    """Return the content hashes of a set's documents."""
    tables = [shard.documents(["hash"]) for shard in shards.open_set(path).shards]
    return {row["hash"].hex() for table in tables for row in table.to_pylist()}


def audit(path: Path, *options: str, expect: int = 0) -> Any:
    """Run `tokenmill audit --json` in the folder of a set."""
    done = call_here(main, *one_worker("audit", path, *options, "--json"), cwd=path.parent)
    assert done.returncode == expect, done.stderr + done.stdout[-2000:]
    return json.loads(done.stdout)


def read_list(path: Path) -> dict[str, str]:
    """Return the hashes of a block list, each with the comment above it."""
    lines = path.read_text(encoding="ascii").splitlines()
    assert all(line[0] == "#" for line in lines[:3])
    return {line: above for above, line in zip(lines[3::2], lines[4::2], strict=True)}


def test_planted_documents_are_listed_and_dropped(tmp_path: Path) -> None:
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        file for name in ("", "asyncio", "email", "idlelib", "unittest") for file in sorted((root / name).glob("*.py"))
    ]
    code = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    prose = real_documents()
    planted = plant(prose)
    recipe = write_source(tmp_path, [*code, *prose, *planted], vocab_size=3000)
    build_here(recipe, tmp_path / "set")
    before = hashes_of(tmp_path / "set")
    wanted = {xxhash.xxh3_128_hexdigest(text.encode()) for text in planted}
    assert len(wanted) == 60
    assert wanted <= before
    found = audit(tmp_path / "set", "--write-block-list", "block.txt")
    listed = read_list(tmp_path / "block.txt")
    assert wanted <= listed.keys(), "every planted document"
    assert len(listed.keys() - wanted) <= MOST_OTHERS * len(before)
    assert found["block_list"]["hashes"] == len(listed)

    text = recipe.read_text()
    recipe.write_text(f'drop_hashes = ["block.txt"]\n{text}')
    result = build_here(recipe, tmp_path / "set")
    assert result["ran"]["encode"] == result["ran"]["tokenizer"] == 0
    after = hashes_of(tmp_path / "set")
    assert after == before - listed.keys()
    again = audit(tmp_path / "set", "--write-block-list", "again.txt")
    named = {row["text"].strip() for row in again["block_list"]["ids"]}
    (check,) = [check for check in again["checks"] if check["name"] == "concentrated"]
    named |= {row["text"].strip() for row in check["rows"]}
    assert not named & {TRIPLES, LOGS, TABLES, LISTS}
    refused = call_here(main, *one_worker("audit", tmp_path / "set", "--write-block-list", "block.txt"), cwd=tmp_path)
    assert refused.returncode == 2
    assert "the set was built with this block list" in refused.stderr
    assert read_list(tmp_path / "block.txt") == listed
    texts = {row["text"].strip() for row in found["block_list"]["ids"]}
    assert {LOGS, TABLES, LISTS} & texts

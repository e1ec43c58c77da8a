"""Sixty planted documents, end to end: the audit lists them, a build with the list drops exactly what is listed."""

import random
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.support.builds import build_here, call_here, hashes_in, real_documents
from tests.support.recipes import source, write_recipe, write_texts

pytestmark = pytest.mark.long


MOST_OTHERS = 0.02
"""Share of the other documents that may be listed: those of real text that are full of words of their own."""


TRIPLES, LOGS, TABLES, LISTS = MARKS = ("PersonX", "AndroidRuntime", "fefefe", "oardvark")
"""One word of each kind of planted document: words that nothing else holds, in text that is otherwise ordinary."""
RARE = [LISTS, "usavik", "quillet", "zarfin", "brontel", "maskop", "vintrum", "delpho", "garnix", "hulbert"]


def plant_line(rng: random.Random, kind: str) -> str:
    """Return a line of triples, of a log, of a hex table or of a word list: what spoilt a model."""
    if kind == TRIPLES:
        one, other = rng.choice(["XY", "YX"])
        return f"Person{one} {rng.choice(['gives', 'asks', 'visits', 'pays'])} Person{other} a gift @.@ the end"
    if kind == LOGS:
        number = rng.randrange(9999)
        return f"E/AndroidRuntime({number}): at com.example.Class{number % 97}.run(line {number % 89})"
    if kind == TABLES:
        return " ".join(rng.choice(["fefefe", "0a0b0c", "dcdcdc", f"{rng.randrange(256):02x}"]) for _ in range(8))
    return ", ".join(rng.choice(RARE) for _ in range(6))


def plant(texts: list[str]) -> list[str]:
    """Return sixty documents that begin as ordinary text and go on as lines of one kind, a quarter as each."""
    rng, documents = random.Random(3), list[str]()
    for index in range(60):
        lines = [plant_line(rng, MARKS[index % 4]) for _ in range(rng.randint(20, 40))]
        documents.append("\n".join([rng.choice(texts)[: rng.randint(100, 300)], f"no. {index}", *lines]))
    return documents


def audit(path: Path, *options: str) -> Any:
    """Run `tokenmill audit --json` in the folder of a set."""
    return call_here("audit", path, *options, "--json", cwd=path.parent, expect=0).json


def read_list(path: Path) -> set[str]:
    """Return the hashes of a block list."""
    return {line for line in path.read_text(encoding="ascii").splitlines() if not line.startswith("#")}


def test_planted_documents_are_listed_and_dropped(tmp_path: Path):
    root = Path(sysconfig.get_path("stdlib"))
    files = [file for name in ("", "asyncio", "email", "idlelib", "unittest") for file in (root / name).glob("*.py")]
    code = [file.read_text(encoding="utf-8", errors="replace") for file in sorted(files)]
    prose = real_documents()
    planted = plant(prose)
    write_texts(tmp_path / "text.jsonl", dict.fromkeys([*code, *prose, *planted]))
    sizes = {"split": {"val_tokens": 20_000}, "shards": {"tokens": 1_000_000}, "tokenizer": {"vocab_size": 3000}}
    recipe = write_recipe(tmp_path / "recipe.toml", source("text", "text.jsonl"), **sizes)
    build_here(recipe, tmp_path / "set")
    before = hashes_in(tmp_path / "set")
    wanted = {xxhash.xxh3_128_hexdigest(text.encode()) for text in planted}
    assert (len(wanted), wanted <= before) == (60, True)
    found = audit(tmp_path / "set", "--write-block-list", "block.txt")
    listed = read_list(tmp_path / "block.txt")
    assert wanted <= listed, "every planted document"
    assert len(listed - wanted) <= MOST_OTHERS * len(before)
    assert found["block_list"]["hashes"] == len(listed)

    recipe.write_text(f'drop_hashes = ["block.txt"]\n{recipe.read_text()}')
    result = build_here(recipe, tmp_path / "set")
    assert result["ran"]["encode"] == result["ran"]["tokenizer"] == 0
    (entry,) = result["drop_hashes"]
    assert entry["hashes"] == entry["found"] == entry["documents"] == len(listed)
    assert hashes_in(tmp_path / "set") == before - listed
    again = audit(tmp_path / "set", "--write-block-list", "again.txt")
    (check,) = [check for check in again["checks"] if check["name"] == "concentrated"]
    assert not {row["text"].strip() for row in again["block_list"]["ids"] + check["rows"]} & {*MARKS}
    refused = call_here("audit", tmp_path / "set", "--write-block-list", "block.txt", cwd=tmp_path, expect=2)
    assert "the set was built with this block list" in refused.stderr
    assert read_list(tmp_path / "block.txt") == listed
    texts = {row["text"].strip() for row in found["block_list"]["ids"]}
    assert {LOGS, TABLES, LISTS} & texts

"""Generated strings in the source that has 3 % of the tokens, end to end: found, traced, taken out by hash or pattern.

The set is real text of this installation; the commands are those that a person runs.
"""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import xxhash

import shards
from shards.__main__ import main
from tests.support.builds import build_here, call_here, one_worker, real_documents

PLANTED = ("PersonX", "PersonY", "fefefe", "@.@")
"""What the planted documents are full of and no other document holds."""
PATTERNS = [r"\bPerson[XY]\b", "(?i)FEFEFE"]


def library(*folders: str) -> list[str]:
    """Return the texts of the standard library's modules in the given folders."""
    root = Path(sysconfig.get_path("stdlib"))
    files = [file for folder in folders for file in sorted((root / folder).glob("*.py"))]
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]


def planted_documents() -> list[str]:
    """Return 60 documents of generated sentences, in a style that nobody writes."""
    rng = random.Random(3)
    verbs = ["gives", "thanks", "asks", "visits", "forgives", "remembers", "follows", "pays"]
    documents: list[str] = []
    for number in range(60):
        lines = [f"{number}: PersonX and PersonY"]
        for _ in range(rng.randint(8, 30)):
            one, other = rng.choice(["XY", "YX"])
            lines.append(f"Person{one} {rng.choice(verbs)} Person{other} no. {rng.randrange(1000)} @.@ fefefe")
        documents.append("\n".join(lines))
    return documents


def hash_of(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sources, of which the smallest bounds the set, and `recipe.toml`."""
    folder = tmp_path_factory.mktemp("drops")
    pieces = [text[start : start + 1500] for text in library("idlelib") for start in range(0, 9000, 1500)]
    pieces = [piece for piece in dict.fromkeys(pieces) if len(piece) > 1000]
    random.Random(1).shuffle(pieces)
    planted = planted_documents()
    sources = {
        "code": (library("", "asyncio", "email"), 87),
        "prose": (real_documents(), 10),
        # One of the planted documents stands there twice.
        "extra": ([*pieces[:32], *planted, planted[0]], 3),
    }
    lines = ['name = "drops"']
    for name, (texts, weight) in sources.items():
        rows = [json.dumps({"text": text}) for text in texts if text]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
        lines += ["[[sources]]", f'name = "{name}"', f'paths = ["{folder}/{name}.jsonl"]', f"weight = {weight}"]
    lines += ["[tokenizer]", "vocab_size = 3000", "[mix]", 'tokens = "max"', "[split]", "val_tokens = 20_000"]
    (folder / "recipe.toml").write_text("\n".join([*lines, "[shards]", "tokens = 200_000", ""]))
    return folder


@pytest.fixture(scope="module")
def built(folder: Path) -> dict[str, Any]:
    return build_here(folder / "recipe.toml", folder / "set")


@pytest.fixture(scope="module")
def planted(built: dict[str, Any], folder: Path) -> set[str]:
    """The hashes of the planted documents; all are in the set."""
    hashes = {hash_of(text) for text in planted_documents()}
    assert len(hashes) == 60
    assert hashes <= documents_of(folder / "set", "extra")
    return hashes


def documents_of(path: Path, source: str) -> set[str]:
    """Return the hashes of a source's documents in a set."""
    rows = [row for shard in shards.open_set(path).shards for row in shard.documents(["source", "hash"]).to_pylist()]
    return {row["hash"].hex() for row in rows if row["source"] == source}


def command(name: str, *arguments: str | Path, cwd: Path) -> Any:
    """Run a command of `shards` and return the JSON it prints."""
    done = call_here(main, *one_worker(name, *arguments), "--json", cwd=cwd)
    assert done.stdout, done.stderr
    return json.loads(done.stdout) | {"exit_code": done.returncode}


def concentrated(path: Path) -> list[dict[str, Any]]:
    """Return the ten most suspicious ids of a set, as its audit lists them."""
    checks = command("audit", path, cwd=path.parent)["checks"]
    (check,) = [check for check in checks if check["name"] == "concentrated"]
    return check["rows"][:10]


def check_clean(path: Path, planted: set[str]) -> None:
    """Check that a set holds none of the planted documents, that its audit does not list them, and that it is whole."""
    assert not documents_of(path, "extra") & planted
    assert not any(string in row["text"] for row in concentrated(path) for string in PLANTED)
    report = command("validate", path, "--level", "full", cwd=path.parent)
    assert (report["exit_code"], report["problems"]) == (0, [])


def write_recipe(folder: Path, name: str, first: str = "", extra: str = "") -> Path:
    """Write the recipe with a line before, and one in the source `extra`."""
    text = (folder / "recipe.toml").read_text()
    path = folder / name
    path.write_text(f"{first}\n{text.replace('weight = 3', f'weight = 3{chr(10)}{extra}')}")
    return path


def snapshot(work: Path) -> dict[str, int]:
    """Return the files of the stages that a block list must not touch, with their times."""
    files = [file for stage in ("tokenizer", "encode") for file in (work / stage).glob("*/*")]
    return {str(file): file.stat().st_mtime_ns for file in files}


def test_from_the_audit_to_a_set_without_them_by_hash(folder: Path, planted: set[str]) -> None:
    before = documents_of(folder / "set", "extra")
    suspicious = {row["text"].strip(): row["id"] for row in concentrated(folder / "set")}
    assert set(PLANTED) <= suspicious.keys()
    for question in (["--token", str(suspicious["fefefe"])], ["--text", "PersonX"]):
        found = command("trace", "set", *question, "--out", "block.txt", cwd=folder)
        assert found["documents"] == found["hashes"] == 60
        assert {line for line in (folder / "block.txt").read_text().splitlines() if line[0] != "#"} == planted

    (folder / "other.txt").write_text("".join(hash_of(f"other {n}") + "\n" for n in range(60)))
    work = snapshot(folder / "set.work")
    recipe_path = write_recipe(folder, "clean.toml", 'drop_hashes = ["block.txt", "other.txt"]')
    result = build_here(recipe_path, folder / "set")
    assert result["ran"] == {"tokenizer": 0, "encode": 0, "mix": 1, "assemble": result["shards"]}
    assert snapshot(folder / "set.work") == work
    assert "mix: drop_hashes: 60 of 60 hashes of block.txt found, 61 documents dropped" in result["notes"]
    assert any("0 of 60 hashes of other.txt found; no document" in note for note in result["notes"])
    assert documents_of(folder / "set", "extra") == before - planted
    check_clean(folder / "set", planted)

    manifest = shards.open_set(folder / "set").manifest
    assert {source.name: source.dropped.get("in block list block.txt", 0) for source in manifest.sources} == {
        "code": 0,
        "prose": 0,
        "extra": 61,
    }
    lists = [(entry.file, entry.hashes, entry.found, entry.documents) for entry in manifest.drop_hashes]
    assert lists == [("block.txt", 60, 60, 61), ("other.txt", 60, 0, 0)]
    recipe = json.loads((folder / "set/recipe.json").read_text())
    assert recipe["drop_hashes"] == [f"{entry.file}#sha256={entry.sha256}" for entry in manifest.drop_hashes]
    train = manifest.splits["train"]
    for row, share in zip(manifest.mix, (0.87, 0.10, 0.03), strict=True):
        assert abs(row.achieved_tokens - share * train.requested_tokens) < 20_000, "to within a document"
        assert row.requested == pytest.approx(share)
    assert not build_here(recipe_path, folder / "set")["tasks_run"]


def test_small_set_is_not_bad(folder: Path, built: dict[str, Any]) -> None:
    """A set of 200 thousand tokens cannot hold each of 3,000 ids often: the audit says what its size explains."""
    small = folder / "small"
    build_here(folder / "recipe.toml", small, "--set", "mix.tokens=200_000", "--set", "split.val_tokens=5_000")
    report = command("audit", small, cwd=folder)
    checks = {check["name"]: check for check in report["checks"]}
    assert (report["exit_code"], report["verdict"]) == (0, "look")
    assert "a set of its size can be expected to have" in checks["rare"]["summary"]
    assert not any(check["verdict"] == "bad" for check in checks.values())


def test_by_pattern_before_the_tokenizer_and_never_too_many(folder: Path, planted: set[str]) -> None:
    before = documents_of(folder / "set", "extra") | planted
    first = f"drop_if_matches = {json.dumps(PATTERNS)}"
    out = folder / "by-pattern"
    refused = build_here(write_recipe(folder, "pattern.toml", first), out, expect=2)["stderr"]
    assert "source 'extra': drop_if_matches drops 61 of 93 documents (65.59%), more than max_dropped = 0.01" in refused
    assert "61 match \\bPerson[XY]\\b" in refused
    assert ": >>>PersonX<<< and PersonY\\nPerson" in refused
    assert not out.exists()

    result = build_here(write_recipe(folder, "pattern.toml", first, "max_dropped = 0.66"), out)
    assert result["ran"]["encode"] == result["ran"]["tokenizer"] == 0, "what was encoded is kept"
    assert documents_of(out, "extra") == before - planted
    dropped = {source["name"]: source["dropped"] for source in result["sources"]}
    assert dropped["extra"] == {r"matches \bPerson[XY]\b": 61}
    assert not any(reason.startswith("matches") for name in ("code", "prose") for reason in dropped[name])
    check_clean(out, planted)
    vocabulary = shards.open_set(out).tokenizer().get_vocab()
    assert not any("Person" in entry or "fefe" in entry for entry in vocabulary), "the tokenizer never saw them"
    recipe = json.loads((out / "recipe.json").read_text())
    assert [source["drop_if_matches"] for source in recipe["sources"]] == [PATTERNS] * 3

"""The build, run as a person runs it: same bytes whatever happens on the way, and only the work that is missing."""

# pyright: basic

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import xxhash

import pipeline
import shards
from pipeline.builder import running_build
from pipeline.sources.selection import open_sources
from tests.support.builds import build_here, digests, source_documents
from tests.support.small_recipe import write_small_recipe


@pytest.fixture(scope="module")
def corpus(recipe: Path) -> Path:
    return recipe.parent / "corpus"


@pytest.fixture(scope="module")
def built(recipe: Path, expected: dict[str, str]) -> Path:
    assert digests(recipe.parent / "set") == expected
    return recipe.parent / "set"


def test_every_document_decodes_to_its_text(corpus: Path, built: Path) -> None:
    texts, shard_set, found = source_documents(corpus), shards.open_set(built), []
    for shard in shard_set.shards:
        tokens = shard.read().tolist()
        for row in shard.documents().to_pylist():
            *ids, end = tokens[row["start"] : row["start"] + row["length"]]
            found.append(shard_set.vocabulary.decode(ids))
            assert end == shard_set.eos_id
            assert found[-1] in texts[row["source"]]
            assert xxhash.xxh3_128_digest(found[-1]) == row["hash"]
    assert len(found) > 300
    assert any(b"<|endoftext|>" in text for text in found), "special tokens in text stay text"


def test_pruning_leaves_what_the_build_used(tmp_path: Path) -> None:
    """The work folder is a cache: it keeps what any build made, until one is told to remove what it does not use."""
    recipe, out, other = write_small_recipe(tmp_path), tmp_path / "set", ("--set", "tokenizer.vocab_size=290")
    first = build_here(recipe, out)["ran"]
    before = digests(out)
    build_here(recipe, out, *other)
    back = build_here(recipe, out)
    assert back["ran"] == {"tokenizer": 0, "encode": 0, "mix": 0, "assemble": first["assemble"]}
    assert "damaged" not in back["stderr"]
    assert digests(out) == before
    assert build_here(recipe, out, *other, "--prune")["ran"]["encode"] == 0
    assert build_here(recipe, out, *other)["tasks_run"] == 0
    assert build_here(recipe, out)["ran"] == first


def test_a_set_is_validated_in_full_once(recipe: Path, tmp_path: Path) -> None:
    """A build that is killed while it validates leaves a finished set, which the next build validates."""
    out = tmp_path / "set"
    levels = ("quick", "full", "full")
    done = [build_here(recipe, out, "--validate", level)["validated"] for level in levels]
    assert done == ["quick", "full", "quick"]
    (tmp_path / "set.work" / "build.json").unlink()
    (out / "README.md").write_text("what FORMAT.md allows beside a set")
    (out / ".gitattributes").touch()
    assert build_here(recipe, out)["validated"] == "full"
    # An altered shard is written again.
    before, damaged = digests(out), out / "train-00001.bin.zst"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    again = build_here(recipe, out)
    assert again["ran"]["assemble"] == 1
    assert f"{damaged}: damaged" in again["stderr"]
    assert digests(out) == before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--set", 'sources.prose.keep.score=">= 9"'], ["'prose': no document is left: ", "not score >= 9"]),
        (["--set", "split.val_tokens=100_000_000"], ["split.val_tokens", "'prose'", "'docs'", "'code'"]),
        (["--set", "split.val_tokens=150_000"], ["split.val_tokens", "'prose'", "46"]),
        (["--set", "sources.docs.text=body.contents"], ["no column 'body.contents'", "body.content"]),
    ],
)
def test_what_cannot_be_built_is_refused_and_nothing_published(
    recipe: Path, tmp_path: Path, options: list[str], expected: list[str]
) -> None:
    out = tmp_path / "set"
    refused = build_here(recipe, out, *options, expect=2)
    for text in expected:
        assert text in refused["stderr"]
    assert not (out.exists() and list(out.iterdir()))


def test_room_for_a_given_tokenizer(recipe: Path, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs: list[int] = []
    monkeypatch.setattr(running_build, "check_room", lambda found, _: needs.append(found[0][2]))
    given = pipeline.load_recipe(recipe, overrides=[f"tokenizer={{file='{built}/tokenizer.json'}}"])
    units = open_sources(given)[0].units
    build = MagicMock(recipe=given, units=[units, [], []])
    build.driver.scratch = None
    for build.tokenizer.vocab_size in (65_536, 65_537):
        running_build.RunningBuild.check_disk(build, units)
    text_bytes = sum(unit.text_bytes for unit in units)
    assert needs[1] - needs[0] == pytest.approx(2 * text_bytes / running_build.LEAST_BYTES_PER_TOKEN, abs=9)


def test_a_build_that_fails_early_leaves_no_empty_folder(recipe: Path, tmp_path: Path) -> None:
    options = ("--set", "tokenizer.vocab_size=20_000", "--set", "tokenizer.sample_bytes=20 KB")
    refused = build_here(recipe, tmp_path / "set", *options, expect=2)
    assert re.search("vocab_size: 20,000 is too large for a sample of .* entries", refused["stderr"])
    assert not list(tmp_path.iterdir())


def test_a_folder_of_other_things_is_left_alone(recipe: Path, built: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("do not touch")
    refused = build_here(recipe, tmp_path, expect=2)
    assert "thesis.tex" in refused["stderr"]
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    before = digests(built)
    refused = build_here(recipe, built, "--set", "name=other", expect=2)
    assert "holds the set 'small'" in refused["stderr"]
    assert digests(built) == before
    for out, work in (("a", "a/w"), ("a/w", "a")):
        refused = build_here(recipe, tmp_path / out, "--work", str(tmp_path / work), expect=2)
        assert "set's folder, " in refused["stderr"]
    # So is a work folder.
    work = tmp_path / "sources"
    work.mkdir()
    (work / "mine.py").write_text("print()")
    refused = build_here(recipe, tmp_path / "set", "--work", str(work), expect=2)
    assert "not a build's work: mine.py" in refused["stderr"]
    assert [path.name for path in work.iterdir()] == ["mine.py"]
    assert "expected one with a name" in build_here(recipe, Path("/"), expect=2)["stderr"]

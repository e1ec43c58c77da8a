"""The build, run as a person runs it: same bytes whatever happens on the way, and only the work that is missing."""

# pyright: basic

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import shards
from tests.support.builds import (
    SPECIAL_TOKENS,
    build_here,
    call_here,
    digests,
    run_build,
    source_documents,
)
from tests.support.small_recipe import write_small_recipe
from tokenmill.__main__ import main


@pytest.fixture(scope="module")
def corpus(recipe: Path) -> Path:
    return recipe.parent / "corpus"


@pytest.fixture(scope="module")
def built(recipe: Path, expected: dict[str, str]) -> Path:
    assert digests(recipe.parent / "set") == expected
    return recipe.parent / "set"


def decoded_documents(shard_set: shards.ShardSet) -> list[tuple[str, str, bytes, bytes]]:
    """Return (split, source, hash, text) of every document, decoded with the published byte-level alphabet."""
    from shards.format.tokenizer_json import byte_characters

    tokenizer = json.loads((shard_set.path / "tokenizer.json").read_text(encoding="utf-8"))
    values = {character: byte for byte, character in enumerate(byte_characters())}
    pieces = {
        index: bytes(values[character] for character in entry)
        for entry, index in tokenizer["model"]["vocab"].items()
        if entry not in SPECIAL_TOKENS
    }
    found = []
    for shard in shard_set.shards:
        tokens = shard.read().tolist()
        for row in shard.documents().to_pylist():
            stop = row["start"] + row["length"] - 1
            assert tokens[stop] == shard_set.eos_id
            text = b"".join(pieces[token] for token in tokens[row["start"] : stop])
            found.append((shard.entry.split, row["source"], row["hash"], text))
    return found


def test_two_workers_write_the_bytes_of_one(recipe: Path, built: Path, tmp_path: Path) -> None:
    run_build(recipe, tmp_path / "set", "--workers", "2")
    assert digests(tmp_path / "set") == digests(built)


def test_every_document_decodes_to_its_text(corpus: Path, built: Path) -> None:
    import xxhash

    expected = source_documents(corpus)
    found = decoded_documents(shards.open_set(built))
    assert len(found) > 300
    for _, source, digest, text in found:
        assert text in expected[source]
        assert xxhash.xxh3_128_digest(text) == digest
    assert any(b"<|endoftext|>" in text for _, _, _, text in found), "special tokens in text stay text"


def test_a_tokenizer_that_gigatoken_cannot_run(recipe: Path, corpus: Path, built: Path, tmp_path: Path) -> None:
    tokenizer = json.loads((built / "tokenizer.json").read_text())
    digits = {"type": "Digits", "individual_digits": True}
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, tokenizer["pre_tokenizer"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    given = ("--set", f'tokenizer={{file = "{tmp_path}/tokenizer.json"}}')
    said = "so `tokenizers` encodes, about 1 MB of text a second and core"
    assert said in call_here(main, "plan", recipe, *given).stdout
    assert said in build_here(recipe, tmp_path / "set", *given)["stderr"]
    plain = Tokenizer.from_str(json.dumps(tokenizer | {"added_tokens": []}))
    shard_set = shards.open_set(tmp_path / "set")
    texts = source_documents(corpus)
    for _, source, _, text in decoded_documents(shard_set):
        assert text in texts[source]
    (shard, *_) = shard_set.splits["val"]
    first = shard.documents().to_pylist()[0]
    ids = shard.read(0, first["length"] - 1).tolist()
    assert ids == plain.encode(shard_set.vocabulary.decode(ids).decode(), add_special_tokens=False).ids


def test_another_compression_writes_the_shards_again_and_says_why(recipe: Path, built: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    level = ["--set", "shards.zstd_level=3"]
    before = build_here(recipe, out, *level)
    assert build_here(recipe, out, *level)["tasks_run"] == 0
    again = build_here(recipe, out)
    assert again["ran"]["assemble"] == again["tasks_run"] == again["shards"]
    assert "shards.zstd_level = null (was 3)" in again["stderr"]
    assert "was" not in before["stderr"]
    assert digests(out) == digests(built)
    small = build_here(recipe, out, "--set", "shards.zstd_level=9")
    assert small["ran"]["assemble"] == small["shards"]
    # Another compression, the same tokens; what was chosen is in the set's own recipe.
    small_set, usual = shards.open_set(out), shards.open_set(built)
    assert [shard.entry.tokens_sha256 for shard in small_set.shards] == [s.entry.tokens_sha256 for s in usual.shards]
    sizes = [sum(shard.entry.files.tokens.bytes for shard in one.shards) for one in (small_set, usual)]
    assert sizes[0] < sizes[1]
    build_here(out / "recipe.json", tmp_path / "again")
    assert digests(tmp_path / "again") == digests(out)


def test_pruning_leaves_what_the_build_used(tmp_path: Path) -> None:
    """The work folder is a cache: it keeps what any build made, until one is told to remove what it does not use."""
    recipe, out, other = write_small_recipe(tmp_path), tmp_path / "set", ("--set", "tokenizer.vocab_size=290")
    first = build_here(recipe, out)["ran"]
    before = digests(out)
    build_here(recipe, out, *other)
    back = build_here(recipe, out)
    assert back["ran"] == {"tokenizer": 0, "encode": 0, "mix": 0, "assemble": first["assemble"]}
    assert digests(out) == before
    assert build_here(recipe, out, *other, "--prune")["ran"]["encode"] == 0
    assert build_here(recipe, out, *other)["tasks_run"] == 0
    assert build_here(recipe, out)["ran"] == first


def test_a_set_is_validated_in_full_once(recipe: Path, tmp_path: Path) -> None:
    """A build that is killed while it validates leaves a finished set, which the next build validates."""
    out = tmp_path / "set"
    levels = ("quick", "full", "full")
    said = [build_here(recipe, out, "--validate", level)["stderr"] for level in levels]
    assert [re.findall(r"validate: (\w+) level", text) for text in said] == [["quick"], ["full"], ["quick"]]
    assert ["found whole by the full level before" in text for text in said] == [False, False, True]
    (tmp_path / "set.work" / "build.json").unlink()
    assert "validate: full level" in build_here(recipe, out)["stderr"]


def test_an_altered_shard_is_written_again(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "set"
    build_here(recipe, out)
    before = digests(out)
    damaged = out / "train-00001.bin.zst"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    again = build_here(recipe, out)
    assert again["ran"]["assemble"] == 1
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
    assert "Traceback" not in refused["stderr"]
    assert not (out.exists() and list(out.iterdir()))


def test_a_build_that_fails_early_leaves_no_empty_folder(recipe: Path, tmp_path: Path) -> None:
    options = ("--set", "tokenizer.vocab_size=20_000", "--set", "tokenizer.sample_bytes=20 KB")
    refused = build_here(recipe, tmp_path / "set", *options, expect=2)
    assert re.search("vocab_size: 20000 is too large for a sample of .* entries", refused["stderr"])
    assert "Traceback" not in refused["stderr"]
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
    assert "set's folder" in build_here(recipe, tmp_path / "a", "--work", str(tmp_path / "a" / "w"), expect=2)["stderr"]


def test_a_work_folder_of_other_things_is_left_alone(recipe: Path, tmp_path: Path) -> None:
    work = tmp_path / "sources"
    work.mkdir()
    (work / "mine.py").write_text("print()")
    refused = build_here(recipe, tmp_path / "set", "--work", str(work), expect=2)
    assert "not a build's work: mine.py" in refused["stderr"]
    assert [path.name for path in work.iterdir()] == ["mine.py"]
    assert "expected one with a name" in build_here(recipe, Path("/"), expect=2)["stderr"]

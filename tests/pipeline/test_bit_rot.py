"""A disk that changes bytes of the work folder: the set stays the same, and the build says what it made again."""

# pyright: basic

import shutil
from pathlib import Path

import pytest

from tests.support.builds import Built, build_here, digests, run_build
from tests.support.damage import flip

ROUNDS = [
    ("pairs similar mix", "tokenizer/*/*/tokenizer.json encode/*/*/measures.bin bands/*/*/bands.bin"),
    ("pairs similar mix", "tokenizer/*/*/checksums.bin encode/*/*/hits.bin bands/*/*/edges.bin"),
    ("", "bands/*/receipt.json"),
    ("similar mix", "pairs/*/*/pairs.bin encode/*/*/documents.npy"),
    ("similar mix", "pairs/*/*/edges.bin encode/*/*/checksums.bin"),
    ("mix", "similar/*/*/similar.bin tokenizer/*/receipt.json encode/*/receipt.json"),
    ("", "mix/*/*/evidence.parquet encode/*/*/tokens.bin assemble/*/receipt.json"),
    ("", "pairs/*/receipt.json similar/*/receipt.json"),
    ("", "mix/*/receipt.json"),
]
"""Stages to delete, so that others are read again, and kinds of files in each of which a byte is flipped."""


@pytest.fixture
def damaged(whole: Built, tmp_path: Path) -> Built:
    """Return a copy of the build with every feature, to be damaged."""
    return whole.copy(tmp_path)


def test_a_flipped_byte_in_every_kind_of_file(damaged: Built, whole: Built):
    work = damaged.out.with_name("set.work")
    for seed, (deleted, patterns) in enumerate(ROUNDS):
        flipped = {pattern: list(work.glob(pattern)) for pattern in patterns.split()}
        for path in (path for paths in flipped.values() for path in paths if path.stat().st_size):
            flip(path, 0 if path.name in ("edges.bin", "checksums.bin") else None, seed)  # which is always read
        for stage in deleted.split():
            shutil.rmtree(work / stage)
        shutil.rmtree(damaged.out)
        said = build_here(damaged.recipe, damaged.out)["stderr"]
        assert digests(damaged.out) == whole.digests
        for pattern, paths in flipped.items():  # perhaps not each: the mix may need no byte of a block
            assert any(f"{path.parent}/" in said for path in paths), (pattern, said)
        assert "rebuilding it" in said


@pytest.mark.long
def test_worker_processes_find_damage(damaged: Built, whole: Built):
    work = damaged.out.with_name("set.work")
    flipped = [path for path in sorted(work.glob("encode/*/*/documents.npy")) if path.stat().st_size > 1000][:3]
    for path in flipped:
        flip(path, None)
    shutil.rmtree(damaged.out)
    shutil.rmtree(work / "mix")
    said = run_build(damaged.recipe, damaged.out, "--workers", "2")["stderr"]
    assert digests(damaged.out) == whole.digests
    for path in flipped:
        assert f"{path}: damaged" in said
    assert said.count("rebuilding it") == len(flipped)

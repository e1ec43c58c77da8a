"""Validation passes good sets and names every planted fault."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import get_args

import pytest
import xxhash

import shards
from shards.convert.export import export_set
from shards.errors import ProblemKind
from shards.format.manifest import SourceCounts
from shards.validation import duplicates
from shards.validation.validate import check_mix_shares, validate
from tests.support.faults import FAULTS, Fault, edit
from tests.support.refusals import GOLDEN
from tests.support.shard_sets import write_set


@pytest.mark.parametrize("level", ["quick", "full"])
def test_good_set_has_no_problem(good_set, level):
    seen = []
    report = validate(good_set, level=level, progress=lambda done, total: seen.append((done, total)))
    assert (report.problems, report.ok) == ([], True)
    manifest = shards.open_set(good_set).manifest
    tokens = sum(split.tokens for split in manifest.splits.values())
    assert (report.shards, report.level, report.tokens) == (3, level, tokens)
    assert report.documents == sum(split.documents for split in manifest.splits.values())
    if level == "full":
        assert seen[-1] == (tokens, tokens)


def claim_checksums(folder: Path) -> dict[str, str]:
    """Return what the writer of a set has noted: by the SHA-256 of the manifest the XXH3-128 of what is there."""
    claims: dict[str, str] = {}
    for shard in shards.open_set(folder).shards:
        data = (folder / shard.entry.files.tokens.path).read_bytes()
        claims[shard.entry.files.tokens.sha256] = xxhash.xxh3_128_hexdigest(data)
        claims[shard.entry.tokens_sha256] = xxhash.xxh3_128_hexdigest(
            b"".join(tokens.tobytes() for tokens in shard.iter_tokens())
        )
    return claims


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_fault_is_named(fault: Fault, plan, tmp_path):
    folder = tmp_path / "set"
    fault.damage(plan)
    write_set(folder, plan)
    report = validate(folder, level="full", threads=2)
    assert {problem.kind for problem in report.problems} == set(fault.kinds.split()), report.problems
    assert not report.ok
    assert "version None" not in str(report.problems)
    # As a build does: by the checksums of whoever wrote the files.
    assert validate(folder, level="full", checksums=claim_checksums(folder)).problems == report.problems


def test_a_disk_that_gives_other_bytes_once_is_named(good_set, tmp_path):
    """The first reading finds bytes that the second one does not."""
    checksums = claim_checksums(good_set)
    digest = shards.open_set(good_set).shards[1].entry.tokens_sha256
    checksums[digest] = "0" * 32
    found = validate(good_set, level="full", checksums=checksums).problems
    assert [(problem.kind, problem.where) for problem in found] == [("tokens_checksum", "train-00001.bin.zst")]
    assert "xxh3_128 of the decompressed tokens is" in found[0].message


def test_every_kind_of_problem_is_planted():
    planted = {kind for fault in FAULTS for kind in fault.kinds.split()}
    told = re.findall(r"\[(\w+)\]$", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE)
    # What conversations must be is planted in tests/pipeline/test_conversations.py.
    assert set(get_args(ProblemKind)) <= planted.union(told, {"conversation"})


def test_a_folder_of_links_is_a_set(good_set, tmp_path):
    """As in the Hub's cache, whose snapshots are links into its folder of blobs."""
    folder = tmp_path / "snapshots" / "0123abcd"
    blobs = shutil.copytree(good_set, tmp_path / "blobs")
    folder.mkdir(parents=True)
    for path in blobs.iterdir():
        (folder / path.name).symlink_to(f"../../blobs/{path.name}")
    (folder / "README.md").write_text("a card")
    (folder / ".gitattributes").write_text("*.zst filter=lfs")
    (folder / ".cache").mkdir()
    assert validate(folder, level="full").problems == []
    assert shards.open_set(folder).manifest_sha256 == shards.open_set(good_set).manifest_sha256
    export_set(shards.open_set(folder), tmp_path / "exported", layout="nanogpt")


def test_repeated_source_is_no_problem_within_its_epochs(plan, tmp_path):
    first, second = plan.documents["train"]
    first_prose = {len(d.tokens): d for d in first if d.source == "prose"}
    twins = [i for i, d in enumerate(second) if d.source == "prose" and len(d.tokens) in first_prose][:5]
    assert twins
    for place in twins:
        second[place] = first_prose[len(second[place].tokens)]
    plan.epochs.update(prose=2)
    write_set(tmp_path / "set", plan)
    assert validate(tmp_path / "set", level="full").problems == []
    edit(tmp_path / "set", lambda manifest: manifest["sources"][0].update(epochs=1))
    assert {p.kind for p in validate(tmp_path / "set", level="full").problems} == {"document_repeated"}


def test_duplicates_are_found_in_partitions_too(good_set, plan, tmp_path, monkeypatch):
    val, train = plan.documents["val"][0], plan.documents["train"][1]
    for k in range(30):  # in all ranges of hashes
        for documents in (val, train):
            documents[k] = dataclasses.replace(documents[k], hash=bytes([8 * k, *range(15)]))
    write_set(tmp_path / "set", plan)
    for documents_of_a_part in (duplicates.PARTITION_DOCUMENTS, 100):
        monkeypatch.setattr(duplicates, "PARTITION_DOCUMENTS", documents_of_a_part)
        found = validate(tmp_path / "set", level="full").problems
        assert {problem.kind for problem in found} == {"split_leak"}
        assert len(found) == duplicates.MAX_REPORTED + 1
        assert "30 such documents in all" in found[-1].message


@pytest.mark.parametrize("off", [11, -11, 500])
def test_more_than_a_document_off_is_named(good_set, off):
    """Each training shard is asked for 750 tokens of prose and 250 of code, whose longest documents have 5."""
    manifest = shards.open_set(good_set).manifest
    train = manifest.splits["train"].model_copy(update={"requested_tokens": 2000})
    code = SourceCounts(tokens=250, documents=1)
    for prose, places in (
        ([750, 750], []),
        ([750 + off, 750], ["manifest.json", "train-00000"]),
        ([750 + off, 750 - off], ["train-00000", "train-00001"]),
    ):
        held = [
            shard.model_copy(update={"sources": {"prose": SourceCounts(tokens=tokens, documents=1), "code": code}})
            for shard, tokens in zip(manifest.shards, prose, strict=False)
        ]
        changed = manifest.model_copy(update={"shards": held, "splits": {"train": train}})
        found = check_mix_shares(changed, {"prose": 5, "code": 5})
        assert [problem.where for problem in found] == places

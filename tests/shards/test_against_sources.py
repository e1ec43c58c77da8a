"""Sampled documents against their sources: byte for byte, through readers found by entry point."""

import dataclasses
import importlib.metadata
import json
import shutil

import pytest

from shards.validation.validate import validate
from tests.support.faults import edit, reseal
from tests.support.shard_sets import sha256, write_set


class Point:
    """An entry point, as far as the lookup goes."""

    def __init__(self, name, function):
        self.name, self.function = name, function

    def load(self):
        """Return the reader, or fail as an entry point of a package that is gone."""
        if self.function is None:
            raise ModuleNotFoundError("No module named 'gone'")
        return self.function


@pytest.fixture
def install(monkeypatch):
    """Install a reader for a source kind, in place of every real one."""

    def replace(name, function):
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Point(name, function)])

    return replace


@pytest.fixture
def files_reader(source_folder, install):
    """Install a reader of the fixture's units; return the list of calls made to it."""
    calls = []

    def read_documents(source, unit, rows):
        assert source["kind"] == "files"
        assert unit.startswith(source["name"])
        calls.append((source["name"], unit, tuple(rows)))
        texts = json.loads((source_folder / unit).read_text())
        return [texts[row].encode() if row < len(texts) else None for row in rows]

    install("files", read_documents)
    return calls


def test_documents_equal_their_source(good_set, files_reader):
    report = validate(good_set, level="quick", against_sources=200)
    assert (report.problems, report.not_run) == ([], [])
    assert report.compared_documents == 200
    assert sorted({call[0] for call in files_reader}) == ["code", "prose"]
    assert len(files_reader) == 5, "each unit is read once"
    again = list(files_reader)
    files_reader.clear()
    validate(good_set, level="quick", against_sources=200)
    assert files_reader == again, "the sample is seeded"


def test_asking_for_more_than_there_is_compares_everything(good_set, files_reader):
    report = validate(good_set, level="full", against_sources=10**9)
    assert report.ok
    assert report.compared_documents == report.documents


def test_changed_source_is_named(good_set, source_folder, install):
    def read_documents(source, unit, rows):
        texts = json.loads((source_folder / unit).read_text())
        return [None if row % 2 else texts[row].replace("the", "The").encode() for row in rows]

    install("files", read_documents)
    report = validate(good_set, against_sources=100)
    assert {problem.kind for problem in report.problems} == {"source_mismatch"}
    messages = " ".join(problem.message for problem in report.problems)
    assert "no such row" in messages
    assert "differs from byte" in messages


def test_one_changed_byte_is_named(plan, tmp_path, files_reader):
    shard = plan.documents["val"][0]
    tokens = shard[4].tokens.copy()
    tokens[3] = (tokens[3] + 1) % 256
    shard[4] = dataclasses.replace(shard[4], tokens=tokens)
    write_set(tmp_path / "set", plan)
    assert validate(tmp_path / "set", level="full").problems == []
    problems = validate(tmp_path / "set", against_sources=10**6).problems
    assert [(p.kind, p.where) for p in problems] == [
        ("source_mismatch", "val-00000 document 4"),
        ("document_table", "val-00000 document 4"),  # nor does its hash fit what the shard holds
    ]


def test_wrong_hash_is_named(plan, tmp_path, files_reader):
    shard = plan.documents["val"][0]
    shard[4] = dataclasses.replace(shard[4], hash=b"0123456789abcdef")
    write_set(tmp_path / "set", plan)
    problems = validate(tmp_path / "set", against_sources=10**6).problems
    assert [(p.kind, p.where) for p in problems] == [("document_table", "val-00000 document 4")]


def test_source_that_is_gone_could_not_be_checked(good_set, install):
    def read_documents(source, unit, rows):
        raise FileNotFoundError(f"{unit} is gone. Restore it.")

    install("files", read_documents)
    report = validate(good_set, against_sources=50)
    assert report.problems == []
    assert not report.ok
    assert len(report.not_run) == 5
    assert all("is gone. Restore it." in reason for reason in report.not_run)


@pytest.mark.parametrize(("name", "function"), [("hub", print), ("files", None)])
def test_missing_reader_could_not_be_checked(good_set, install, name, function):
    install(name, function)
    report = validate(good_set, against_sources=50)
    assert report.problems == []
    assert len(report.not_run) == 2
    assert "nothing installed reads the kind 'files'" in report.not_run[0]


@pytest.mark.parametrize("recipe", ["[]", "{}", '{"sources": [1]}', "not json"])
def test_recipe_without_sources_could_not_be_checked(good_set, tmp_path, files_reader, recipe):
    folder = shutil.copytree(good_set, tmp_path / "set")
    (folder / "recipe.json").write_text(recipe)
    edit(folder, lambda manifest: manifest["recipe"].update(sha256=sha256(folder / "recipe.json")))
    report = validate(folder, against_sources=5)
    assert report.problems == []
    assert "lists no sources" in report.not_run[0]


def test_broken_shards_are_named_and_the_others_compared(good_set, tmp_path, files_reader):
    folder = shutil.copytree(good_set, tmp_path / "set")
    (folder / "train-00000.docs.parquet").write_bytes(b"PAR1 no table PAR1")
    reseal(folder)
    (folder / "val-00000.bin.zst").unlink()
    report = validate(folder, level="full", against_sources=60)
    assert {problem.kind for problem in report.problems} == {"document_table", "file_missing"}
    assert len(report.problems) == 2
    assert report.compared_documents > 0

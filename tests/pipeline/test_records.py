"""Before its first task a build says which tasks run again, and which key or file is the cause."""

# pyright: basic

import json
import os
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

from pipeline.assemble import AssembleTask
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.builder.records import StageForecast, find_changes, name_parts
from pipeline.clean.decontamination.items import EvaluationsTask
from pipeline.encode.encode import EncodeTask
from pipeline.engine import tasks
from pipeline.engine.checksums import unseal
from pipeline.engine.tasks import NOT_IN_DIGEST, NUMBER, InDigest, JsonText, Payload, digest_of_payload, last_part
from pipeline.mix.cuts import MixTask
from pipeline.recipe.schema import EvaluationRecipe
from pipeline.sources.software_heritage.fetch import FetchTask
from pipeline.tokenizer.sample import TokenizerTask
from shards.stores.files import lock_folder
from tests.support.builds import build_here, call_here
from tests.support.recipes import write_small_recipe


def state_of(folder: Path) -> dict[str, Any]:
    """Return every file and folder below a folder, with its time and size."""
    found = {path: path.lstat() for path in [folder, *folder.rglob("*")]}
    return {str(path): (facts.st_mtime_ns, facts.st_size, facts.st_ino) for path, facts in found.items()}


def forecast(recipe: Path, out: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Return the stages that a dry run names; check that it changes no file."""
    before = state_of(recipe.parent)
    found = build_here(recipe, out, "--dry-run", *options)
    assert state_of(recipe.parent) == before
    return {stage["stage"]: stage for stage in found["stages"]}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_small_recipe(tmp_path)


def test_what_a_change_runs_again_and_why(recipe: Path, tmp_path: Path):
    out = tmp_path / "set"
    stages = {stage: found["run"] for stage, found in forecast(recipe, out).items()}
    assert stages == {"tokenizer": 1, "encode": 1, "mix": None, "assemble": None}
    first = build_here(recipe, out)
    assert " runs " not in first["stderr"]
    assert forecast(recipe, out) == {}

    for options, expected in {
        ("--set", "seed=5"): ("tokenizer", "seed = 5 (was 1337)"),
        ("--set", "tokenizer.vocab_size=290"): ("tokenizer", "tokenizer.vocab_size = 290 (was 300)"),
        ("--set", "tokenizer.id_order=merge"): ("tokenizer", 'tokenizer.id_order = "merge" (was "frequency")'),
        ("--set", "sources.notes.min_bytes=9"): ("tokenizer", "sources.notes.min_bytes = 9 (was 1)"),
        ("--tokens", "3000"): ("mix", 'mix.tokens = 3000 (was "max")'),
        ("--set", "split.val_tokens=200"): ("mix", "split.val_tokens = 200 (was 0)"),
        ("--set", "shards.tokens=4000"): ("mix", "shards.tokens = 4000 (was 2000)"),
        ("--set", "clean.code.max_dropped=1"): ("tokenizer", "sources.notes.clean is new"),
    }.items():
        stages = forecast(recipe, out, *options)
        assert next(iter(stages)) == expected[0], options
        assert any(cause.startswith(expected[1]) for cause in stages[expected[0]]["causes"]), stages
        later = [stage for stage in first["ran"] if stage not in ("tokenizer", "encode", expected[0])]
        for stage in later:
            assert stages[stage]["causes"] == [f"it depends on {expected[0]}"]
            assert stages[stage]["run"] == first["ran"][stage]

    near = ("--set", "clean.near_duplicates={}")
    assert [*forecast(recipe, out, "--set", "seed=5", *near)][2:5] == ["bands", "pairs", "similar"]
    again = build_here(recipe, out, "--set", "seed=5", "--set", "tokenizer.vocab_size=290", *near)
    assert [*forecast(recipe, out, "--set", "seed=6")] == ["tokenizer", "encode", "mix", "assemble"]
    lines = again["stderr"].splitlines()
    assert lines[0].endswith(": tokenizer.vocab_size = 290 (was 300); seed = 5 (was 1337)")
    assert lines[1] == "encode: runs 1 task: it depends on tokenizer"
    for line in (
        ": tokenizer has a new result",
        " encode has a new result",
        ": seed = 5 (was 1337); mix has a new result; tokenizer has a new result",
    ):
        assert line in again["stderr"]


def test_files_that_changed_are_named(recipe: Path, tmp_path: Path):
    out, notes = tmp_path / "set", tmp_path / "notes"
    # An edit that keeps size and time is seen with `verify` alone.
    for verify, causes in (
        (["--set", "sources.notes.verify=sha256"], ["sources.notes: 1 file changed (07.txt)"]),
        ([], None),
    ):
        build_here(recipe, out, *verify)
        status = (notes / "07.txt").stat()
        (notes / "07.txt").write_bytes((notes / "07.txt").read_bytes().swapcase())
        os.utime(notes / "07.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
        assert forecast(recipe, out, *verify).get("tokenizer", {}).get("causes") == causes
    (notes / "00.txt").unlink()
    (notes / "01.txt").write_text("another text of the first note, longer than a word")
    (notes / "zz.txt").write_text("a note that came later")
    assert forecast(recipe, out)["tokenizer"]["causes"] == [
        "sources.notes: 1 file changed (01.txt)",
        "sources.notes: 1 file newly read (zz.txt)",
        "sources.notes: 1 file no longer read (00.txt)",
    ]
    shown = call_here("build", recipe, "--out", out, "--workers", "1", "--dry-run", expect=0)
    assert "tokenizer: runs 1 task: sources.notes: 1 file changed" in shown.stdout


def test_records_explain_and_stop_nothing(recipe: Path, tmp_path: Path):
    build_here(recipe, tmp_path / "set")
    path, other = tmp_path / "set.work/stages.json", ("--set", "seed=5")

    def causes() -> list[str]:
        return forecast(recipe, tmp_path / "set", *other)["tokenizer"]["causes"]

    with lock_folder(tmp_path / "set.work"), lock_folder(tmp_path / "set"):
        assert causes() == ["seed = 5 (was 1337)"], "a dry run takes no lock"
    path.write_text("{}")
    assert causes() == []
    assert build_here(recipe, tmp_path / "set")["tasks_run"] == 0
    assert unseal(path.read_bytes())
    (tmp_path / "set/train-00001.bin.zst").unlink()
    ((name, stage),) = forecast(recipe, tmp_path / "set").items()
    assert (name, stage["run"], stage["tasks"]) == ("assemble", 1, 4)
    assert stage["causes"] == ["results are missing or unusable in the work or the output folder"]


SAME = {"url": "", "version": "", "revision": None}


def as_spans(names: tuple[str, ...]) -> JsonText:
    return JsonText(json.dumps([{"name": name, "format": names[-1]} | SAME for name in names]))


@dataclass(frozen=True)
class Reading(Payload):
    """A payload that reads some files of a source."""

    LIBRARIES: ClassVar = ("numpy",)

    files: Annotated[tuple[str, ...], InDigest(as_spans, "sources.{task.name}.files")]
    source: Annotated[dict[str, Any], InDigest(called="sources.{task.name}")]
    before: Annotated[str, InDigest(last_part, "after.encode")] = "work/encode/" + "a" * 100
    number: Annotated[int, InDigest(called=NUMBER)] = 0
    name: Annotated[str, NOT_IN_DIGEST] = "web"


def test_parts_of_tasks_are_joined_by_name(monkeypatch: pytest.MonkeyPatch):
    def parts(*files: str, **source: Any) -> dict[str, str]:
        return name_parts([Reading(files, source, number=number) for number in range(2)])

    one = parts("a.b", "c", clean={"gopher": {"min_words": 1}}, keep={})
    assert find_changes(one, one) == []
    version = one["code.numpy"]
    monkeypatch.setattr(tasks, "_version", lambda library: f"{library} of tomorrow")
    other = parts("a.b", "d", clean={"gopher": {"min_words": 2}}, format="x")
    assert find_changes(one, other) == [
        "sources.web: 1 file newly read (d)",
        "sources.web: 1 file no longer read (c)",
        "sources.web.clean.gopher.min_words = 2 (was 1)",
        'sources.web.format = "x" (was nothing)',
        f'code.numpy = "numpy of tomorrow" (was {version})',
    ]
    assert all(len(value) < 62 for value in one.values())
    # A source, and a table, that is new or gone is one change, and explains what lists sources.
    old = {"order": "#1", "sources.web.weight": "1.0", "sources.web.take": "1.0"}
    new = {"order": "#2", "sources.web.v2.weight": "1.0", "sources.web.v2.take": "1.0", "after.selection": "[true]"}
    new |= {f"clean.near_duplicates.{key}": "1" for key in ("places", "action", "min_jaccard")}
    assert find_changes(old, old | new) == [
        "sources.web.v2 is new",
        "clean.near_duplicates is new",
        "the list of sources or evaluation sets has changed",
        "other parts of the sources are read",
    ]
    assert find_changes(old | new, new | old)[0] == "the list of sources or evaluation sets has changed"
    assert find_changes(old | new, old)[:2] == ["sources.web.v2 is gone", "clean.near_duplicates is gone"]
    assert str(StageForecast("mix", 1, 1, tuple("abcdefg"))) == "mix: runs 1 task: a; b; c; d; e; and 2 more"
    assert os.sep not in "".join(one)


def test_every_field_of_a_payload_counts_in_its_digest_unless_it_is_marked():
    """So a field that is added and forgotten everywhere else makes tasks run again, and never a wrong cache hit."""
    payload = Reading(("a",), {"text": "body"})
    known = digest_of_payload(payload)

    def with_field(default: Any, *marks: InDigest) -> str:
        kind = Annotated[Any, *marks] if marks else Any
        return digest_of_payload(
            make_dataclass("More", [("more", kind, default)], bases=(Reading,), frozen=True)(
                payload.files, payload.source
            )
        )

    assert with_field(1) != known
    assert with_field(0) not in (known, with_field(1))
    assert with_field(1, NOT_IN_DIGEST) == known
    assert with_field("work/mix/b", InDigest(last_part)) == with_field("elsewhere/mix/b", InDigest(last_part)) != known
    # A key that is not set, and the place of a work folder, change nothing.
    assert {with_field(unset) for unset in (None, False, (), "")} == {known}
    assert digest_of_payload(replace(payload, before="/moved/encode/" + "a" * 100, name="other")) == known


def test_what_counts_of_a_payload_is_known():
    """Fields that do not count are decided by others that do: whoever marks another one looks at this list."""
    not_counted: dict[type[Payload], set[str]] = {
        EncodeTask: {"tokenizer", "tokenizer_task", "chat"},
        TokenizerTask: {"weights", "limits"},
        EvaluationsTask: set(),
        MixTask: {"fetch"},
        AssembleTask: {"runs", "fetch", "threads", "opening", "special_ids"},
        FetchTask: {"journal"},
    }
    for kind, expected in not_counted.items():
        assert {name for name, mark in tasks._list_marks(kind) if mark is NOT_IN_DIGEST} == expected


def test_the_order_of_sources_and_of_evaluations_counts(recipe: Path):
    """The sample has the sources in their order, and items name their evaluation by its number."""
    read = load_checked_recipe(recipe)
    sources = tuple(read.sources[0].with_values(name=name) for name in ("one", "two"))
    spans = {"one": (), "two": ()}
    evaluations = tuple(
        EvaluationRecipe.model_validate({"name": name, "paths": ["items.jsonl"], "text": "question"})
        for name in ("one", "two")
    )

    def digests(step: int) -> list[str]:
        sample = TokenizerTask(read.tokenizer, sources[::step], spans, dict.fromkeys(spans, 1.0), read.seed, {})
        items = EvaluationsTask(evaluations[::step], spans)
        return [digest_of_payload(sample), digest_of_payload(items)]

    assert all(before != after for before, after in zip(digests(1), digests(-1), strict=True))

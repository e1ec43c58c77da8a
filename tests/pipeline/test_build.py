"""The build, run as a person runs it: same bytes whatever happens on the way, and only the work that is missing."""

# pyright: basic

from pathlib import Path
from unittest.mock import MagicMock

import pytest

import pipeline
from pipeline.builder import running_build
from pipeline.sources.selection import open_sources
from shards.format.reader import open_set
from tests.support.builds import build_here, call_here, digests, read_json
from tests.support.recipes import source, write_recipe, write_small_recipe, write_texts


@pytest.fixture(scope="module")
def built(recipe: Path, expected: dict[str, str]) -> Path:
    assert digests(recipe.parent / "set") == expected
    return recipe.parent / "set"


def test_pruning_leaves_what_the_build_used(tmp_path: Path):
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


def test_a_set_is_validated_in_full_once(recipe: Path, tmp_path: Path):
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


def test_room_for_a_given_tokenizer(recipe: Path, built: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_what_is_refused_leaves_folders_as_they_are(recipe: Path, built: Path, tmp_path: Path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/thesis.tex").write_text("do not touch")
    before = digests(built)
    for out, *options in (
        ("texts",),
        ("set", "--work", tmp_path / "texts"),
        (built, "--set", "name=other"),
        ("set", "--set", "tokenizer.vocab_size=20_000", "--set", "tokenizer.sample_bytes=20 KB"),
    ):
        build_here(recipe, tmp_path / out, *options, expect=2)
    assert [path.name for path in tmp_path.rglob("*")] == ["texts", "thesis.tex"]
    assert digests(built) == before


def test_a_source_of_weight_0_is_in_the_phases_that_name_it(tmp_path: Path):
    notes = write_small_recipe(tmp_path).parent / "notes"
    sources = [
        source("early", notes / "[0-2]*.txt", format="file"),
        source("late", notes / "3*.txt", weight=0, format="file"),
    ]
    phases = [{"name": "main", "share": 0.8}, {"name": "last", "share": 0.2, "weights": {"late": 3}}]
    mix, shards = {"tokens": 2000, "phases": phases}, {"tokens": 400}
    recipe = write_recipe(tmp_path / "r.toml", *sources, mix=mix, shards=shards, split={"val_tokens": 400})
    build_here(recipe, tmp_path / "out")
    call_here("validate", tmp_path / "out", expect=0)
    entries = read_json(tmp_path / "out/manifest.json")
    assert [[row["requested"] for row in phase["mix"]] for phase in entries["phases"]] == [[1, 0], [0.25, 0.75]]
    assert [row["requested"] for row in entries["mix"]] == pytest.approx([0.85, 0.15])
    estimate = pipeline.plan_set(recipe)
    assert [estimate.refusal, *estimate.stops] == [""]
    assert [round(one.share, 9) for one in estimate.sources] == [0.85, 0.15]
    # The set's own recipe makes it again.
    build_here(tmp_path / "out/recipe.json", tmp_path / "again")
    assert digests(tmp_path / "again") == digests(tmp_path / "out")


def test_validation_without_weights_has_the_shares_of_all_text(tmp_path: Path):
    """Validation takes a third of the long documents, of which training then has a smaller share."""
    for name, sizes in (("long", [4000] * 3), ("short", [10] * 300)):
        texts = [" ".join(f"{name}{number * size + word}" for word in range(size)) for number, size in enumerate(sizes)]
        write_texts(tmp_path / f"{name}.jsonl", texts)
    sources = [{"name": name, "paths": [f"{name}.jsonl"]} for name in ("long", "short")]
    tables = {"split": {"val_tokens": 3000}, "shards": {"tokens": 100_000}}
    recipe = write_recipe(tmp_path / "r.toml", *sources, **tables)
    assert build_here(recipe, tmp_path / "set")["problems"] == []
    manifest = open_set(tmp_path / "set").manifest
    assert manifest.count("val", "long").documents == 1
    assert manifest.mix[1].requested > 1.2 * manifest.sources[1].tokens_available / sum(
        source.tokens_available for source in manifest.sources
    )

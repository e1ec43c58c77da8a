"""The plan: counts from footers, a pilot that foresees the build, and a disk that is too small refused with numbers."""

from __future__ import annotations

import gzip
import json
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import build_set
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.estimate.disk import REMEDY
from pipeline.estimate.durations import Machines, TimeEstimate
from pipeline.estimate.estimate import Estimate, estimate
from pipeline.estimate.pilot import measure_pilot
from pipeline.estimate.pilot_pieces import read_pilot_pieces
from pipeline.recipe.schema import Recipe
from pipeline.sources import selection
from pipeline.sources.base import SourceError
from pipeline.sources.selection import Selection, open_sources
from shards.format.manifest import Manifest
from shards.stores.files import InputError, check_room
from tests.support.builds import build_here
from tests.support.hub_builds import Command
from tests.support.recipes import overrides, source, write_recipe
from tests.support.runs import make_recipe
from tests.support.servers import corpora as server_corpora
from tests.support.servers.bucket import Bucket
from tests.support.servers.hub import Hub

WITHIN = 0.10
"""How far a pilot may be from the build."""


@pytest.fixture
def make(tmp_path: Path, write_parquet: Any, documents: list[str]) -> Any:
    """Return `make(**keys)`: a recipe of two sources, `documents` as parquet and half of them as text."""
    write_parquet(tmp_path / "a.parquet", documents)
    (tmp_path / "b.txt").write_text(
        "\n--\n".join(f"{text}\nagain" for text in documents[::2]), encoding="utf-8", newline=""
    )

    def make_one(weights: list[float] | None = None, **keys: Any) -> Recipe:
        recipe = make_recipe(weights or [3, 1], **keys)
        paths = [{"paths": [str(tmp_path / "a.parquet")]}, {"paths": [str(tmp_path / "b.txt")], "separator": "\n--\n"}]
        sources = [source.model_copy(update=more) for source, more in zip(recipe.sources, paths, strict=True)]
        return recipe.model_copy(update={"sources": sources})

    return make_one


# --- From footers alone ---


def test_counts(make: Any, documents: list[str], tmp_path: Path) -> None:
    recipe = make(tokens=10_000, val_tokens=500, shard_tokens=3000)
    found = estimate(recipe, open_sources(recipe))
    first, second = found.sources
    size = sum(len(text.encode()) for text in documents)
    assert (first.files, first.all_files, first.units, first.documents) == (1, 1, 1, len(documents))
    assert size <= first.text_bytes <= 1.05 * size + 2000
    assert (second.documents, second.text_bytes) == (None, (tmp_path / "b.txt").stat().st_size)
    assert (found.train_tokens, found.val_tokens, found.shards) == (10_000, 500, 5)
    assert (found.time, found.probe, first.ratios.kept, first.download_bytes) == (None, None, None, 0)
    assert json.loads(json.dumps(found.to_dict()))["sources"][0]["name"] == "s0"


def test_tokens_by_when_short(make: Any) -> None:
    def tokens(**keys: Any) -> int:
        recipe = make(**keys)
        return estimate(recipe, open_sources(recipe)).train_tokens

    most = tokens(tokens="max")
    assert tokens(tokens=10**9) == 10**9
    assert tokens(tokens=10**9, when_short="shrink") == most
    assert abs(tokens(tokens="max", when_short="repeat", max_epochs=3) - 3 * most) <= 3
    assert tokens(weights=[1e300, 1e-300], tokens="max") > 0
    # What validation takes is not there to train on.
    assert abs(most - 4000 - tokens(tokens="max", val_tokens=4000)) <= 4


def test_every_source_is_reported(make: Any, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"broken")
    recipe = make()
    (tmp_path / "b.txt").unlink()
    with pytest.raises(SourceError) as caught:
        open_sources(recipe)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == ["source 's0'", "source 's1'"]


def test_validation_that_no_source_can_give(make: Any) -> None:
    with pytest.raises(SourceError) as caught:
        open_sources(make(val_tokens=10**9))
    lines = str(caught.value).splitlines()
    assert "asks for 750,000,000 tokens of 's0', which has at most" in lines[0]
    assert "asks for 250,000,000 tokens of 's1', which has at most" in lines[1]


def test_a_source_of_no_documents(make: Any, tmp_path: Path, write_parquet: Any) -> None:
    write_parquet(tmp_path / "a.parquet", [])
    with pytest.raises(SourceError, match="source 's0': its files hold no document"):
        open_sources(make())


# --- The pilot against the build ---


def foresee(recipe: Recipe, *, workers: int = 1) -> Estimate:
    selections = open_sources(recipe)
    return estimate(recipe, selections, pilot=measure_pilot(recipe, selections), machines=Machines(workers))


def expect_foreseen(found: Estimate, out: Path) -> None:
    """Compare a plan with the set that was built: text, documents and tokens by source, tokens and bytes of the set."""
    manifest = Manifest.model_validate_json((out / "manifest.json").read_bytes())
    receipts = [
        json.loads(path.read_bytes())["result"]
        for path in out.with_name(f"{out.name}.work").glob("encode/*/receipt.json")
    ]
    for planned, built in zip(found.sources, manifest.sources, strict=True):
        assert planned.tokens == pytest.approx(built.tokens_available, rel=WITHIN), planned.name
        assert planned.documents == pytest.approx(built.documents_available, rel=WITHIN), planned.name
    text_bytes = sum(receipt["text_bytes"] for receipt in receipts)
    assert sum(source.text_bytes for source in found.sources) == pytest.approx(text_bytes, rel=WITHIN)
    assert found.train_tokens == pytest.approx(manifest.splits["train"].tokens, rel=WITHIN)
    written = sum(shard.files.tokens.bytes + shard.files.documents.bytes for shard in manifest.shards)
    assert found.output_bytes == pytest.approx(written, rel=WITHIN)
    runs = sum(path.stat().st_size for path in out.with_name(f"{out.name}.work").glob("encode/*/*.*"))
    assert found.scratch_bytes == pytest.approx(runs, rel=WITHIN)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The standard library: functions with a score as parquet, prose as compressed jsonl, modules as files."""
    folder = tmp_path_factory.mktemp("library")
    root = Path(sysconfig.get_path("stdlib"))
    modules = [path for path in sorted(root.glob("*.py")) if path.stat().st_size]
    functions = [text for path in modules for text in path.read_text("utf-8").split("\n\n\n") if len(text) > 100]
    functions = list(dict.fromkeys(functions))
    for part in range(3):
        own = functions[part::3]
        scores = [None if index % 7 == 0 else index % 5 for index in range(len(own))]
        pq.write_table(pa.table({"text": own, "score": scores}), folder / f"{part}.parquet", row_group_size=16)
    packages = [path for path in sorted(root.glob("*/*.py")) if path.stat().st_size and "test" not in str(path)]
    lines = [json.dumps({"id": path.name, "text": path.read_text("utf-8", "replace")}) for path in packages[::2]]
    (folder / "lines.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def library_recipe(folder: Path, tmp_path: Path, *changes: str) -> Recipe:
    functions = source("functions", folder / "*.parquet", keep={"score": ">= 2"}, weight=60)
    modules = source("modules", folder / "lines.jsonl.gz", min_bytes=300, weight=40)
    tables = {"mix": {"when_short": "shrink"}, "split": {"val_tokens": 5000}, "shards": {"tokens": 200_000}}
    path = write_recipe(tmp_path / "library.toml", functions, modules, tokenizer={"vocab_size": 4000}, **tables)
    return load_checked_recipe(path, overrides=list(changes))


@pytest.fixture(scope="module")
def library_set(library: Path) -> Path:
    """Its set, without changes of the recipe. Read only."""
    build_set(library_recipe(library, library), out=library / "set", workers=1, validate="quick")
    return library / "set"


def test_a_sample_that_is_a_small_part_of_the_text(
    library: Path, library_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.estimate import pilot

    monkeypatch.setattr(pilot, "SAMPLE_BYTES", 1 << 21)
    monkeypatch.setattr(pilot, "LEAST_SOURCE_BYTES", 1 << 20)
    recipe = library_recipe(library, tmp_path)
    found = foresee(recipe)
    assert found.probe
    assert found.probe.sample_bytes < 0.5 * sum(source.text_bytes for source in found.sources)
    expect_foreseen(found, library_set)


def test_a_part_is_priced_as_it_will_be_read(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "WHOLE_BYTES", 10_000)
    monkeypatch.setattr(selection, "LEAST_PART_BYTES", 1 << 14)
    monkeypatch.setattr(selection, "FIRST_GROUP_FILES", 1)
    recipe = library_recipe(library, tmp_path, "mix.tokens=100_000")
    found = foresee(recipe)
    functions = found.sources[0]
    assert functions.has_more
    build_set(recipe, out=tmp_path / "set", workers=1, validate="quick")
    manifest = Manifest.model_validate_json((tmp_path / "set" / "manifest.json").read_bytes())
    assert functions.tokens == pytest.approx(manifest.sources[0].tokens_available, rel=WITHIN)
    assert functions.all_files - functions.files == manifest.sources[0].unread_files


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_block_tells_how_much_of_its_file_it_is(
    tmp_path: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch, suffix: str, source: Any
) -> None:
    monkeypatch.setattr("pipeline.sources.formats.byte_io.BATCH_BYTES", 1 << 22)
    shuffled = [f"{index} {documents[index * 7919 % len(documents)]}" for index in range(12 * len(documents))]
    text = "\n--\n".join(shuffled).encode()
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(gzip.compress(text, 1) if suffix else text)
    found = Selection(0, source(path, separator="\n--\n"), seed=1, tokens=None)
    piece = read_pilot_pieces(found, 1 << 20)
    assert 3 << 20 < piece.text_bytes < 0.6 * len(text)
    # Stated is what the listing says of a compressed file; as much of it as was read.
    share = piece.stated_bytes / found.text_bytes
    assert share == pytest.approx(piece.text_bytes / len(text), rel=0.1)
    assert piece.stored_bytes == pytest.approx(share * path.stat().st_size, rel=0.01)


def test_a_tokenizer_that_is_given_is_used(library: Path, library_set: Path, tmp_path: Path) -> None:
    recipe = library_recipe(library, tmp_path, f"tokenizer={{file='{library_set}/tokenizer.json'}}")
    found = foresee(recipe)
    manifest = Manifest.model_validate_json((library_set / "manifest.json").read_bytes())
    for planned, built in zip(found.sources, manifest.sources, strict=True):
        assert planned.tokens == pytest.approx(built.tokens_available, rel=0.03)
    assert found.time
    assert found.time.tokenizer_s == 0


# --- Over a network ---


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Hub, Bucket]]:
    made = server_corpora.write(tmp_path / "served")
    with Hub(made.root) as hub, Bucket(made.objects) as bucket:
        yield hub, bucket


@pytest.mark.long
def test_a_plan_over_a_network_asks_for_little_and_foresees_the_build(
    served: tuple[Hub, Bucket], tmp_path: Path
) -> None:
    hub, bucket = served
    run = Command(hub, tmp_path)
    run.environment["TOKENMILL_CONTENT_ENDPOINT"] = f"{bucket.url}/content"
    web_keys = {"repo": server_corpora.FINEWEB, "config": "sample-10BT", "keep": {"int_score": ">= 3"}}
    code_keys = {"repo": server_corpora.SMOLLM, "config": "python-edu", "content": "software-heritage"}
    recipe = write_recipe(
        tmp_path / "hub.toml",
        source("web", kind="hub", weight=70, **web_keys),
        source("code", kind="hub", weight=30, **code_keys),
        tokenizer={"vocab_size": 1200},
        mix={"when_short": "shrink"},
        shards={"tokens": 100_000},
    )
    command = ["plan", recipe, "--json", "--gpu-usd-per-hour", "3.6", "--workers", "2"]
    planned = json.loads(run(*command))
    web, code = planned["sources"]
    requests = Counter(request.path for request in hub.requests if request.path.startswith("/cdn/"))
    assert len(requests) == 6
    for path, count in requests.items():
        repository = next(repo for repo in (server_corpora.FINEWEB, server_corpora.SMOLLM) if repo in path)
        groups = pq.read_metadata(tmp_path / "served" / "hub" / repository / path.partition(f"{repository}/")[2])
        assert count <= 2 + 2 * groups.num_row_groups, "two for the footer, two for each row group that is read"
    asked = len(bucket.requests)
    assert 0 < asked <= 256

    assert planned["probe"]["link_bytes_per_s"] > 0
    assert planned["probe"]["content_files_per_s"] > 0
    assert web["download_bytes"] == web["stored_bytes"] > 0
    assert code["content_files"] == pytest.approx(code["documents"], abs=4)
    assert planned["download_bytes"] == web["download_bytes"] + code["download_bytes"]
    assert planned["gpu_usd"] == pytest.approx(planned["time"]["total_s"] / 1000)
    cleaned = json.loads(run(*command, "--set", 'sources.code.drop_if_matches=["import"]'))["sources"][1]
    assert 0 < cleaned["documents"] < code["documents"]
    share = cleaned["dropped"]["matches import"]
    assert share == pytest.approx(1 - cleaned["documents"] / code["documents"], abs=0.05)

    out = run.build(recipe, "set", "--set", "sources.code.max_missing=1.0")
    manifest = json.loads((out / "manifest.json").read_text())
    for entry, built in zip(planned["sources"], manifest["sources"], strict=True):
        assert entry["tokens"] == pytest.approx(built["tokens_available"], rel=WITHIN), entry["name"]
        assert entry["documents"] == pytest.approx(built["documents_available"], rel=WITHIN)
    assert planned["train_tokens"] == pytest.approx(manifest["splits"]["train"]["tokens"], rel=WITHIN)

    fetched = len(bucket.requests)
    guessed = json.loads(run("plan", recipe, "--json", "--no-probe"))
    assert (guessed["probe"], guessed["time"], guessed["gpu_usd"]) == (None, None, None)
    assert guessed["sources"][0]["documents"] > web["documents"], "no predicate was tried"
    assert len(bucket.requests) == fetched


# --- Time ---


def test_what_limits() -> None:
    cpu = {"tokenizer_s": 2, "encode_s": 8, "mix_s": 1, "near_duplicates_s": 0, "assemble_s": 4, "validate_s": 1}
    times = TimeEstimate(workers=2, content_s=1, download_s=30, **cpu)
    assert (times.limit, times.longest_stage, times.total_s) == ("link", "encode", 40)
    assert replace(times, download_s=7).limit == "CPU"
    assert replace(times, download_s=7).total_s == 18
    assert replace(times, download_s=7, mix_s=9).longest_stage == "mix"
    near = replace(times, near_duplicates_s=31)
    assert (near.longest_stage, near.limit, near.total_s) == ("near-duplicates", "CPU", 71)
    assert replace(times, content_s=100).limit == "archive"


def test_more_workers_take_less_time(library: Path, tmp_path: Path) -> None:
    recipe = library_recipe(library, tmp_path)
    selections = open_sources(recipe)
    pilot = measure_pilot(recipe, selections)
    found, more, remote = (
        estimate(recipe, selections, pilot=pilot, machines=machines, gpu_usd_per_hour=7.2)
        for machines in (Machines(1), Machines(4, node_usd_per_hour=2, cpus_per_node=3), Machines(4, True, True))
    )
    one, four, stored = found.time, more.time, remote.time
    assert one
    assert four
    assert stored
    units = sum(len(selection.units) for selection in selections)
    assert (units, found.shards) == (2, 7)
    assert one.encode_s == pytest.approx(2 * four.encode_s)  # a worker without a task does not help
    assert one.assemble_s == pytest.approx(4 * four.assemble_s)
    assert one.validate_s == pytest.approx(four.validate_s)  # one task checks them all
    assert one.tokenizer_s == four.tokenizer_s > 0
    assert found.gpu_usd == pytest.approx(one.total_s / 500)
    assert (found.nodes_usd, more.nodes_usd) == (None, pytest.approx(2 * 2 * four.total_s / 3600))
    # Bytes that a store moves more slowly than this machine works.
    assert stored.validate_s == pytest.approx(max(four.validate_s, found.output_bytes / 85e6))
    assert stored.mix_s == four.mix_s


# --- The disk ---


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    check_room([("scratch", folder, 1000), ("the set", tmp_path, 0)], REMEDY)
    with pytest.raises(InputError) as caught:
        check_room([("scratch", folder, 2 * 10**18), ("the set", tmp_path, 10**18)], REMEDY)
    message = str(caught.value)
    assert "disk: needs 3,000,000 TB (2,000,000 TB for scratch in" in message
    assert f"1,000,000 TB for the set in {tmp_path})" in message
    assert "B are free" in message
    # Two folders of one file system share its space.
    free = 10**6

    class Usage:
        def __init__(self) -> None:
            self.free = free

    monkeypatch.setattr("shards.stores.files.shutil.disk_usage", lambda path: Usage())
    check_room([("scratch", folder, free), ("the set", tmp_path, 0)], REMEDY)
    with pytest.raises(InputError):
        check_room([("scratch", folder, free), ("the set", tmp_path, 1)], REMEDY)


def test_the_command_refuses_a_small_disk(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenmill.__main__ import main

    (tmp_path / "recipe.json").write_text(make(tokens=50_000).to_json())
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "recipe.json", "--no-probe"]) == 0
    usage = type("Usage", (), {"free": 100_000})
    monkeypatch.setattr("shards.stores.files.shutil.disk_usage", lambda path: usage)
    for option in ("--no-probe", "--workers=1"):
        assert main(["plan", "recipe.json", option]) == 2
        captured = capsys.readouterr()
        assert "training and 0 validation tokens" in captured.out, "the plan is told all the same"
        assert "error: disk: needs" in captured.err
        assert "B too few" in captured.err


def test_the_build_refuses_it_too(recipe: Path, tmp_path: Path) -> None:
    changes = overrides("mix.tokens=1_000_000_000_000_000", "mix.when_short=error")
    stderr = build_here(recipe, tmp_path / "set", *changes, expect=2)["stderr"]
    assert "error: disk: needs" in stderr
    assert "TB too few" in stderr


def test_the_command_prints_the_plan(run_cli: Any, make: Any, tmp_path: Path, documents: list[str]) -> None:
    (tmp_path / "recipe.json").write_text(make(tokens=10_000).to_json())
    before = sorted(tmp_path.iterdir())
    result = run_cli("plan", "recipe.json", "--json", "--tokens", "5_000")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["train_tokens"], data["sources"][0]["documents"]) == (5000, len(documents))
    assert data["time"]["total_s"] > 0
    printed = run_cli("plan", "recipe.json", "--gpu-usd-per-hour", "2").stdout
    for expected in ("about 10,000 training and 0 validation tokens", "time: about", "the CPU limits", "US dollars"):
        assert expected in printed
    assert "no probe: tokens are guessed" in run_cli("plan", "recipe.json", "--no-probe").stdout
    refused = run_cli("plan", "recipe.json", "--engine", "slurm")
    assert (refused.returncode, "--engine slurm needs --workers" in refused.stderr) == (2, True)
    cluster = ["--engine", "slurm", "--workers", "64", "--cpus-per-node", "10", "--node-usd-per-hour", "2"]
    stores = ["--work", "s3://b/work", "--out", "s3://b/out", "--json"]
    priced = json.loads(run_cli("plan", "recipe.json", *cluster, *stores).stdout)
    assert priced["time"]["workers"] == 64
    assert priced["nodes_usd"] == pytest.approx(7 * 2 * priced["time"]["total_s"] / 3600)
    assert sorted(tmp_path.iterdir()) == before

"""The plan: a small build foresees the build, and a disk that is too small is refused with numbers."""

import gzip
import json
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import build_set, plan_set
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.clean.documents import DocumentStream
from pipeline.plan import small_build
from pipeline.plan.plan import Estimate, estimate
from pipeline.recipe.schema import Recipe
from pipeline.sources import selection
from pipeline.sources.selection import Selection, open_sources
from pipeline.tokenizer.given_tokenizer import TokenizerError
from shards.format.manifest import Manifest
from tests.support.builds import build_here, call_here, read_json, real_documents
from tests.support.hub_builds import Command
from tests.support.reading import files_source
from tests.support.recipes import overrides, source, write_recipe, write_texts
from tests.support.servers import corpora as server_corpora
from tests.support.servers.bucket import Bucket
from tests.support.servers.hub import Hub

WITHIN = 0.10
"""How far a plan may be from the build."""


def expect_foreseen(found: Estimate, out: Path) -> None:
    """Compare a plan with the set that was built: documents and tokens by source, tokens and bytes of the set."""
    manifest = Manifest.model_validate_json((out / "manifest.json").read_bytes())
    for planned, built in zip(found.sources, manifest.sources, strict=True):
        assert planned.tokens == pytest.approx(built.tokens_available, rel=WITHIN), planned.name
        assert planned.documents == pytest.approx(built.documents_available, rel=WITHIN), planned.name
    assert found.train_tokens == pytest.approx(manifest.splits["train"].tokens, rel=WITHIN)
    written = sum(file.bytes for shard in manifest.shards for file in shard.files.entries)
    assert found.output_bytes == pytest.approx(written, rel=WITHIN)
    work = out.with_name(f"{out.name}.work")
    runs = sum(path.stat().st_size for path in work.glob("encode/*/*/*.*"))
    assert found.scratch_bytes == pytest.approx(runs, rel=WITHIN)
    text = [read_json(path)["result"]["text_bytes"] for path in work.glob("encode/*/receipt.json")]
    assert sum(source.text_bytes for source in found.sources) == pytest.approx(sum(text), rel=WITHIN)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The standard library: functions with a score as parquet, prose as compressed jsonl, modules as files."""
    folder = tmp_path_factory.mktemp("library")
    root = Path(sysconfig.get_path("stdlib"))
    modules = [path for path in sorted(root.glob("*.py")) if path.stat().st_size]
    functions = [text for path in modules for text in path.read_text("utf-8").split("\n\n\n") if len(text) > 100]
    functions = [text for text in dict.fromkeys(functions) if len(text) < 8000]
    for part in range(3):
        own = functions[part::3]
        scores = [None if index % 7 == 0 else index % 5 for index in range(len(own))]
        pq.write_table(pa.table({"text": own, "score": scores}), folder / f"{part}.parquet", row_group_size=16)
    packages = [path for path in sorted(root.glob("*/*.py")) if path.stat().st_size and "test" not in str(path)]
    random.Random(1).shuffle(packages)  # only the beginning of a compressed file is sampled
    lines = [json.dumps({"id": path.name, "text": path.read_text("utf-8", "replace")}) for path in packages]
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


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a plan read a megabyte of each source."""
    monkeypatch.setattr(small_build, "SAMPLE_BYTES", 1 << 21)
    monkeypatch.setattr(small_build, "LEAST_SOURCE_BYTES", 1 << 20)
    monkeypatch.setattr("pipeline.sources.formats.byte_io.BATCH_BYTES", 1 << 20)


@pytest.mark.usefixtures("small_sample")
def test_a_sample_that_is_a_small_part_of_the_text(library: Path, library_set: Path, tmp_path: Path):
    found = plan_set(library_recipe(library, tmp_path))
    assert found.sample_bytes < 0.6 * sum(source.text_bytes for source in found.sources)
    assert [source.is_sample for source in found.sources] == [True, True]
    expect_foreseen(found, library_set)
    write_texts(tmp_path / "few.jsonl", [f"{number} " + ("ab" * 500 + " ") * 5 for number in range(300)])
    few = write_recipe(tmp_path / "few.toml", source("few", "few.jsonl"), tokenizer={"vocab_size": 9000})
    with pytest.raises(TokenizerError, match="vocab_size: 9,000 is too large"):
        plan_set(few)


def test_a_part_is_priced_as_it_will_be_read(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selection, "WHOLE_BYTES", 10_000)
    monkeypatch.setattr(selection, "LEAST_PART_BYTES", 1 << 14)
    monkeypatch.setattr(selection, "FIRST_GROUP_FILES", 1)
    recipe = library_recipe(library, tmp_path, "mix.tokens=100_000")
    functions = plan_set(recipe).sources[0]
    assert functions.has_more
    manifest = build_set(recipe, out=tmp_path / "set", workers=1, validate="quick").manifest
    assert functions.tokens == pytest.approx(manifest.sources[0].tokens_available, rel=WITHIN)
    assert functions.all_files - functions.files == manifest.sources[0].unread_files


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.parquet"])
def test_of_a_large_file_a_batch_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr("pipeline.sources.formats.byte_io.BATCH_BYTES", 1 << 22)
    texts = [f"{number} {text}" for number, text in enumerate(real_documents() * 40)]
    random.Random(1).shuffle(texts)
    text = "\n--\n".join(texts).encode()
    keys = {"separator": "\n--\n"}
    if name == "a.parquet":  # its row group begins with long documents: not its rows count, but their text
        keys = {}
        pq.write_table(pa.table({"text": sorted(texts, key=len, reverse=True)}), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(gzip.compress(text, 1) if name == "a.txt.gz" else text)
    whole = Selection(0, files_source(tmp_path / name, **keys), seed=1, tokens=None)
    (unit,) = small_build.sample_source(whole, 1 << 20).units
    stream = DocumentStream(whole.source, unit.spans, most_bytes=unit.most_bytes)
    read = sum(batch.num_bytes for _, batch in stream)
    assert 1 << 20 <= read < 0.8 * len(text)
    # Stated is what the listing says of a compressed file; as much of it as was read.
    assert stream.stated_bytes / whole.text_bytes == pytest.approx(read / len(text), rel=0.1)


# --- Duplicates, and what the sources allow ---


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two sources of which more than half are copies: within the first, and in the second of the first's."""
    folder = tmp_path_factory.mktemp("twice")
    texts = real_documents()[::2]
    half = len(texts) // 2
    for name, own in (("first", texts[:half] * 3), ("second", texts[half:] + texts[: half // 2])):
        random.Random(name).shuffle(own)
        write_texts(folder / f"{name}.jsonl", own)
    sources = [source(name, f"{name}.jsonl", weight=weight) for name, weight in (("first", 60), ("second", 40))]
    sizes = {"split": {"val_tokens": 1000}, "shards": {"tokens": 50_000}}
    return write_recipe(folder / "r.toml", *sources, tokenizer={"vocab_size": 600}, **sizes)


def test_the_plan_of_a_small_corpus_is_its_build(twice: Path, tmp_path: Path):
    found = plan_set(twice)
    build_here(twice, tmp_path / "set")
    manifest = Manifest.model_validate_json((tmp_path / "set/manifest.json").read_bytes())
    assert [one.tokens for one in found.sources] == [one.tokens_available for one in manifest.sources]
    assert found.train_tokens == pytest.approx(manifest.splits["train"].requested_tokens, rel=0.01)
    assert found.sources[0].dropped == {"duplicate": pytest.approx(2 / 3, abs=0.01)}
    assert found.sources[1].dropped == {"duplicate of another source": pytest.approx(1 / 3, abs=0.01)}
    assert (found.refusal, found.scarcest, found.stops) == ("", "first", ())
    assert [one.is_sample for one in found.sources] == [False, False]
    before = sorted(twice.parent.iterdir())
    printed = call_here("plan", twice, "--usd-per-hour", "2").stdout
    for part in (
        "1,000 validation tokens in ",
        "limited by first",
        "without weights, the set has all ",
        "66.7%",
        "US dollars",
    ):
        assert part in printed
    assert sorted(twice.parent.iterdir()) == before


@pytest.mark.parametrize("copies", [1, 2, 6])
def test_the_range_of_a_plan_holds_whatever_a_sample_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int
):
    for name, value in (
        ("SAMPLE_BYTES", 1 << 17),
        ("LEAST_SOURCE_BYTES", 1 << 17),
        ("PARTS", 2),
        ("PART_BYTES", 1 << 16),
    ):
        monkeypatch.setattr(small_build, name, value)
    texts = [f"{text} {number}" for number, text in enumerate(real_documents()) for _ in range(copies)]
    random.Random(3).shuffle(texts)
    for part in range(12):
        write_texts(tmp_path / f"{part}.jsonl", texts[part::12])
    own = {"name": "copied", "paths": ["*.jsonl"]}
    recipe = write_recipe(tmp_path / "r.toml", own, tokenizer={"vocab_size": 600}, shards={"tokens": 1 << 20})
    found = plan_set(recipe)
    build_here(recipe, tmp_path / "set")
    (built,) = Manifest.model_validate_json((tmp_path / "set/manifest.json").read_bytes()).sources
    assert found.sources[0].is_sample
    assert 0 < found.least_train_tokens < built.weight < found.most_train_tokens
    assert f"({found.least_train_tokens:,} to {found.most_train_tokens:,}) training" in call_here("plan", recipe).stdout


@pytest.mark.parametrize("too_many", ["--tokens=150_000", "--set=split.val_tokens=150_000"])
def test_a_plan_that_is_sure_ends_as_the_build(twice: Path, tmp_path: Path, too_many: str):
    build = call_here("build", twice, "--out", tmp_path / "set", too_many, expect=2)
    plan = call_here("plan", twice, too_many, "--json", expect=2)
    assert plan.stderr.splitlines()[-1].partition(":")[0] == build.stderr.splitlines()[-1].partition(":")[0]
    assert plan.json["problems"], "the plan is printed all the same"


def test_one_small_build_is_scaled_to_any_size_and_machine(twice: Path):
    recipe = load_checked_recipe(twice)

    def scale(*machines: Any, **keys: Any) -> Estimate:
        changed = recipe.with_values(mix=recipe.mix.with_values(**keys))
        return estimate(changed, built, *machines)

    with small_build.build_sample(recipe, open_sources(recipe)) as built:
        most = scale(1, tokens="max").train_tokens
        assert scale(1, tokens=10**9).train_tokens == 10**9
        assert scale(1, tokens=10**9, when_short="shrink").train_tokens == most
        assert abs(scale(1, tokens="max", when_short="repeat", max_epochs=3).train_tokens - 3 * most) <= 3
        one, four = scale(1, 7.2), scale(4)
    # More workers take less time.
    assert one.seconds["encode"] == pytest.approx(2 * four.seconds["encode"])  # of two tasks
    assert one.seconds["assemble"] == pytest.approx(4 * four.seconds["assemble"])
    assert one.seconds["tokenizer"] > four.seconds["tokenizer"] > 0
    assert one.total_s > four.total_s
    assert (one.usd, four.usd) == (pytest.approx(one.total_s / 500), None)


# --- Over a network ---


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Hub, Bucket]]:
    made = server_corpora.write(tmp_path / "served")
    with Hub(made.root) as hub, Bucket(made.objects) as bucket:
        yield hub, bucket


@pytest.mark.long
def test_a_plan_over_a_network_asks_for_little(served: tuple[Hub, Bucket], tmp_path: Path):
    hub, bucket = served
    run = Command(hub, tmp_path)
    run.network["content_endpoint"] = f"{bucket.url}/content"
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
    planned = json.loads(run("plan", recipe, "--json", "--usd-per-hour", "3.6", "--workers", "2"))
    web, code = planned["sources"]
    requests = Counter(request.path for request in hub.requests if request.path.startswith("/cdn/"))
    assert len(requests) == 6
    for path, count in requests.items():
        repository = next(repo for repo in (server_corpora.FINEWEB, server_corpora.SMOLLM) if repo in path)
        groups = pq.read_metadata(tmp_path / "served" / "hub" / repository / path.partition(f"{repository}/")[2])
        assert count <= 2 + 2 * groups.num_row_groups, "two for the footer, two for each row group that is read"
    asked = len(bucket.requests)
    assert 0 < asked <= 256

    assert planned["seconds"]["download"] > 0
    assert planned["seconds"]["fetch"] > 0
    assert web["download_bytes"] == web["stored_bytes"] > 0
    assert code["content_files"] == pytest.approx(code["documents"], abs=4)
    assert planned["usd"] == pytest.approx(planned["total_s"] / 1000)


# --- The disk, and the command ---


def test_a_small_disk_is_refused(recipe: Path, twice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    changes = overrides("mix.tokens=1_000_000_000_000_000", "mix.when_short=error")
    stderr = build_here(recipe, tmp_path / "set", *changes, expect=2)["stderr"]
    assert "error: disk: needs" in stderr
    assert "TB too few" in stderr
    monkeypatch.setattr("shards.stores.files.shutil.disk_usage", lambda path: type("Usage", (), {"free": 100_000}))
    refused = call_here("plan", twice, expect=2)
    assert "training and 1,000 validation tokens" in refused.stdout, "the plan is told all the same"
    assert "error: disk: needs" in refused.stderr
    assert "B too few" in refused.stderr
    call_here("plan", twice, "--work", "s3://b/work", "--out", "s3://b/out", expect=0)


def test_a_source_of_few_documents_is_warned_of(twice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_texts(tmp_path / "few.jsonl", [f"{number} {text}" for number, text in enumerate(real_documents()[:4])])
    sources = source("first", str(twice.parent / "first.jsonl"), weight=99), source("few", "few.jsonl", weight=1)
    recipe = write_recipe(tmp_path / "r.toml", *sources, tokenizer={"vocab_size": 600}, split={"val_tokens": 1000})
    said = call_here("plan", recipe).stdout
    assert "warning: validation takes about 25.0% of few (4 documents), more than a twentieth. Split" in said
    assert "warning" not in call_here("plan", recipe, "--set", "split.val_tokens=0").stdout
    monkeypatch.setattr("shards.cli.inspect_set.VALIDATION_DEVIATION", 0.01)
    built = call_here("build", recipe, "--out", tmp_path / "set", "--set", "split.val_tokens=100").stdout
    assert re.search(r"warning: validation takes \d+\.\d% of few \(1 of 4 documents\), more than 5%", built)
    assert "warning: validation deviates from the mix by over 1% for first, because it holds" in built


SHOWN = {
    "long": ("One\x1b[2J line.\n" * 40, "  One\\x1b[2J line.\n" * 12 + "  ... 392 more characters\n"),
    "wide": ("y" * 5000, f"  {'y' * 77}\n" * 12 + "  ... 4,076 more characters\n"),
    "cleaned": ("Write to someone@mail.org.\n\nNow.", "  Write to nobody@example.org.\n  \n  Now.\n"),
    "short": ("short", "short: no document to show: 32 of 32 records are dropped (shorter than min_bytes: 32)\n"),
}


def test_documents_are_shown_as_they_would_be_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name, (text, _) in SHOWN.items():
        write_texts(tmp_path / f"{name}.jsonl", ["tiny", text, *(f"{text} {number}" for number in range(30))])
    sources = [source(name, f"{name}.jsonl", clean={"personal_data": {}}, min_bytes=20) for name in SHOWN]
    recipe = write_recipe(tmp_path / "r.toml", *sources)
    printed = call_here("plan", recipe, "--show", "1").stdout
    for name, (_, shown) in SHOWN.items():
        assert shown in re.sub(rf"(?m)^{name}: {name}.jsonl b0-\d+ row 1\n", "", printed)
    shown = call_here("plan", recipe, "--show", "--json").json["shown"]
    assert [one["row"] for one in shown if "row" in one] == [1, 2, 3] * 3
    assert shown[3]["text"] == SHOWN["wide"][0]

"""Sources on the Hub: real clients against a Hub on loopback, with a network that fails."""

import gzip
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.builds import build_here, digests, read_json, wait_until
from tests.support.hub_builds import Command
from tests.support.recipes import Table, source, write_recipe
from tests.support.servers import corpora
from tests.support.servers.hub import Hub

pytestmark = pytest.mark.long
SIZES: Table = {
    "tokenizer": {"vocab_size": 600, "sample_bytes": "200 KB"},
    "split": {"val_tokens": 2000},
    "shards": {"tokens": 60_000},
    "mix": {"when_short": "shrink"},
}
SOURCES = {
    "web": ("HuggingFaceFW/fineweb-edu", "sample-10BT", "sample/10BT/*.parquet", {"int_score": ">= 3"}),
    "math": ("HuggingFaceTB/finemath", "finemath-4plus", "finemath-4plus/*.parquet", {}),
    "nested": (
        "HuggingFaceTB/smollm-corpus",
        "fineweb-edu-dedup",
        "fineweb-edu-dedup/*.parquet",
        {"metadata.int_score": "<= 4"},
    ),
}


def hub_recipe(path: Path, *names: str, **keys: Any) -> Path:
    """Write a recipe of these sources on the Hub."""
    chosen = [(name, *SOURCES[name]) for name in names or SOURCES]
    hub = [source(name, kind="hub", repo=repo, config=config, keep=keep) for name, repo, config, _, keep in chosen]
    return write_recipe(path, *(table | keys for table in hub), **SIZES)


def files_recipe(path: Path, folder: Path, *names: str) -> Path:
    """Write a recipe of the same sources as files on disk."""
    chosen = [(name, *SOURCES[name]) for name in names or SOURCES]
    files = [source(name, folder / repo / glob, keep=keep) for name, repo, _, glob, keep in chosen]
    return write_recipe(path, *files, **SIZES)


def without_provenance(out: Path) -> dict[str, Any]:
    """Return the content of a set without its provenance."""
    tokens = {name: digest for name, digest in digests(out).items() if name.endswith((".bin.zst", "tokenizer.json"))}
    tables = {path.name: pq.read_table(path).drop_columns(["unit"]).to_pydict() for path in out.glob("*.docs.parquet")}
    manifest = read_json(out / "manifest.json")
    facts = [{**source, "revision": None} for source in manifest["sources"]]
    return {"tokens": tokens, "tables": tables, "sources": facts, "mix": manifest["mix"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small set of the four repositories, made of real text."""
    return corpora.write(tmp_path_factory.mktemp("corpora")).root


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    with Hub(folder) as server:
        yield server


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Command:
    return Command(hub, tmp_path)


@pytest.fixture(scope="module")
def local_set(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of the same files on disk."""
    place = tmp_path_factory.mktemp("local")
    build_here(files_recipe(place / "files.toml", folder), place / "set")
    return place / "set"


@pytest.fixture(scope="module")
def local(local_set: Path) -> dict[str, Any]:
    """What a build from the same files on disk gives."""
    return without_provenance(local_set)


def test_the_shards_are_those_of_the_same_files_on_disk(
    hub: Hub, folder: Path, run: Command, local: dict[str, Any], tmp_path: Path
):
    out = run.build(hub_recipe(tmp_path / "hub.toml"), "set")
    assert without_provenance(out) == local
    # No more bytes are asked than needed, and none if nothing changed.
    wanted = {"web": {"text", "int_score"}, "math": {"text"}, "nested": {"text", "metadata.int_score"}}
    needed = sum(needed_bytes(folder, name, columns) for name, columns in wanted.items())
    asked = sum(request.body_bytes for request in hub.requests if request.path.endswith(".parquet"))
    assert 0.99 * needed < asked < 1.1 * needed
    before = len(hub.requests)
    run.build(hub_recipe(tmp_path / "hub.toml"), "set")
    assert len(hub.requests) == before
    repos = [repo for repo, *_ in SOURCES.values()]
    commits = [*map(hub.commit, repos)]
    assert revisions_of(out) == revisions_of(out, "recipe.json") == commits
    unit = pq.read_table(out / "train-00000.docs.parquet")["unit"][0].as_py()
    assert any(unit.startswith(repo) and f"@{commit}#rg" in unit for repo, commit in zip(repos, commits, strict=True))
    assert digests(run.build(out / "recipe.json", "again")) == digests(out)


def revisions_of(out: Path, name: str = "manifest.json") -> list[str]:
    return [source["revision"] for source in read_json(out / name)["sources"]]


def needed_bytes(folder: Path, name: str, columns: set[str]) -> int:
    """Return the bytes of the footers and of the column chunks that a source's build needs."""
    repo, _, glob, _ = SOURCES[name]
    total = 0
    for path in (folder / repo).glob(glob):
        metadata = pq.read_metadata(path)
        total += metadata.serialized_size + 8  # the footer, its own length and the magic number
        for index in range(metadata.num_row_groups):
            chunks = [metadata.row_group(index).column(i) for i in range(metadata.num_columns)]
            total += sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in columns)
    return total


def with_tokenizer_of(folder: Path) -> tuple[str, str]:
    """Return the flags of a build that trains no tokenizer: its first requests for text are those of encoding."""
    return "--set", f"tokenizer={{file = '{folder / 'tokenizer.json'}'}}"


def test_a_server_that_is_gone_stops_the_build_which_then_reads_the_rest_whatever_fails(
    hub: Hub, run: Command, local: dict[str, Any], local_set: Path, tmp_path: Path
):
    recipe = hub_recipe(tmp_path / "hub.toml")
    encoded = tmp_path / "set.work" / "encode"

    def go() -> None:
        """Let the server go for good when the first unit is encoded; its slowness makes that moment hit."""
        wait_until(lambda: list(encoded.glob("[0-9a-f]*/receipt.json")), "an encoded unit", pause_s=0.005)
        hub.faults.off()
        hub.faults.every(1, "reset")

    hub.faults.every(1, "stall", stall_s=0.05)
    threading.Thread(target=go, daemon=True).start()
    tokenizer = with_tokenizer_of(local_set)
    arguments = ("--out", tmp_path / "set", "--workers", "1", "--give-up-after", "2")
    said = run("build", recipe, *arguments, *tokenizer, expect=2)
    assert "gave up after" in said
    assert "run the same command again" in said
    assert not (tmp_path / "set" / "manifest.json").exists()
    files = {label.partition("@")[0] for result in results_in(encoded) for label in result["labels"]}
    assert files
    hub.faults.off()
    hub.faults.every(5, stall_s=0.5)
    before = len(hub.requests)
    out = run.build(recipe, "set", *tokenizer)
    assert without_provenance(out) == local
    assert sum(result.get("retries", 0) for result in results_in(encoded)) > 0
    again = [request.path for request in hub.requests[before:]]
    assert again
    assert not [path for path in again if any(path.endswith(name) for name in files)]
    assert not [path for path in again if "/api/" in path or "README" in path]  # what was resolved is kept


def results_in(stage: Path) -> list[dict[str, Any]]:
    return [read_json(path)["result"] for path in stage.glob("[0-9a-f]*/receipt.json")]


ABSENT = {
    ("config", "finemath-5plus"): "no configuration 'finemath-5plus'; there are finemath-3plus, finemath-4plus",
    ("split", "test"): "no split 'test' in configuration 'finemath-4plus'; there are train",
    ("text", "body"): "no column 'body'; there are text, id, dump, url",
    ("repo", "someone/nothing"): "no such dataset, or it is private",
    ("revision", "v9"): "revision 'v9': there is no such revision",
}


@pytest.mark.parametrize("part", [slice(0, 3), slice(3, 5)], ids=["files", "commits"])
def test_what_is_not_there_is_said_at_once(part: slice, run: Command, tmp_path: Path):
    math = {"repo": "HuggingFaceTB/finemath", "config": "finemath-4plus"}
    changes = list(ABSENT)[part]
    sources = [source(f"s{n}", kind="hub", **math | {key: value}) for n, (key, value) in enumerate(changes)]
    said = run("plan", write_recipe(tmp_path / "hub.toml", *sources), expect=2)
    for number, change in enumerate(changes):
        assert ABSENT[change] in said
        assert f"source 's{number}'" in said


def test_a_private_set_needs_its_token_which_goes_nowhere_else(hub: Hub, run: Command, tmp_path: Path):
    hub.gated("HuggingFaceTB/finemath", "hf_secret")
    said = run("plan", hub_recipe(tmp_path / "hub.toml", "math"), expect=2, HF_TOKEN="hf_reader")
    assert "to ask for access. A token was sent, but it lacks the right" in said
    hub.private("HuggingFaceTB/finemath", "hf_secret")
    recipe = hub_recipe(tmp_path / "hub.toml", "math")
    assert "No token was sent" in run("plan", recipe, expect=2)
    assert "A token was sent" in run("plan", recipe, expect=2, HF_TOKEN="hf_wrong")
    run.build(recipe, "set", HF_TOKEN="hf_secret")
    assert {request.authorized for request in hub.requests if "/cdn/" in request.path} == {False}


def test_a_branch_is_resolved_once_for_a_work_folder(hub: Hub, folder: Path, run: Command, tmp_path: Path):
    recipe = hub_recipe(tmp_path / "hub.toml", "math")
    first = run.build(recipe, "set")
    tokenizer = (first / "tokenizer.json").read_bytes()
    new = shutil.copytree(folder / "HuggingFaceTB/finemath", tmp_path / "new")
    (new / "finemath-4plus/train-00000-of-00003.parquet").rename(new / "finemath-4plus/train-9.parquet")
    hub.publish("HuggingFaceTB/finemath", new)
    assert (run.build(recipe, "set", "--set", "shards.tokens=50_000") / "tokenizer.json").read_bytes() == tokenizer
    commits = [revisions_of(first)[0], revisions_of(run.build(recipe, "other"))[0]]
    assert commits[0] != commits[1] == hub.commit("HuggingFaceTB/finemath")


@pytest.mark.parametrize("headers", [{"X-Linked-Etag": '"0000"'}, {"X-Linked-Size": "77"}])
def test_a_file_that_changes_on_the_way_stops_the_build(
    headers: dict[str, str], hub: Hub, run: Command, tmp_path: Path
):
    hub.faults.on(r"resolve/.*/finemath-4plus/train-00001", headers=headers)
    said = run("build", hub_recipe(tmp_path / "hub.toml", "math"), "--out", tmp_path / "set", expect=2)
    assert "the file has changed on the server" in said


def test_other_formats_are_read_like_files_on_disk(hub: Hub, folder: Path, run: Command, tmp_path: Path):
    table = pq.read_table(folder / SOURCES["math"][0] / "finemath-4plus").select(["text", "token_count"])
    lines = [json.dumps(row) + "\n" for row in table.to_pylist()]
    made = tmp_path / "made"
    made.mkdir()
    (made / "train-0.jsonl.gz").write_bytes(gzip.compress("".join(lines[::2]).encode()))
    (made / "train-1.jsonl").write_text("".join(lines[1::2]))
    hub.publish("someone/lines", made)
    hub_source = source("s", kind="hub", repo="someone/lines", keep={"token_count": "> 100"})
    from_hub = run.build(write_recipe(tmp_path / "hub.toml", hub_source, **SIZES), "set")
    files = source("s", made / "*", keep={"token_count": "> 100"})
    build_here(write_recipe(tmp_path / "disk.toml", files, **SIZES), tmp_path / "disk")
    assert without_provenance(from_hub) == without_provenance(tmp_path / "disk")


def test_offline_the_cache_is_enough_or_says_what_is_missing(hub: Hub, run: Command, tmp_path: Path):
    recipe = hub_recipe(tmp_path / "hub.toml", "math")
    cache = ("--cache", tmp_path / "cache")
    first = run.build(recipe, "set", *cache)
    pinned = hub_recipe(tmp_path / "pinned.toml", "math", revision=hub.commit("HuggingFaceTB/finemath"))
    before = len(hub.requests)
    out = run.build(pinned, "offline", *cache, HF_HUB_OFFLINE="1")
    assert len(hub.requests) == before
    assert without_provenance(out) == without_provenance(first)
    said = run("build", recipe, "--out", tmp_path / "none", expect=2, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in said


def test_a_byte_that_was_corrupted_on_the_way_is_fetched_anew(hub: Hub, folder: Path, run: Command, tmp_path: Path):
    repo, _, glob, _ = SOURCES["math"]
    path = sorted((folder / repo).glob(glob))[0]
    data = bytearray(path.read_bytes())
    metadata = pq.read_metadata(path)
    chunk = metadata.row_group(0).column(metadata.schema.to_arrow_schema().names.index("text"))
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start + 40 : start + 400] = bytes(360)
    hub.faults.on(f"/cdn/.*finemath-4plus/{path.name}", body=bytes(data))
    recipe = hub_recipe(tmp_path / "hub.toml", "math")
    cache = ("--cache", tmp_path / "cache")
    said = run("build", recipe, "--out", tmp_path / "set", *cache, expect=2)
    assert f"{path.name}: row group 0 cannot be decoded" in said
    assert "Run again: it is fetched again" in said
    hub.faults.off()
    build_here(files_recipe(tmp_path / "files.toml", folder, "math"), tmp_path / "local")
    assert without_provenance(run.build(recipe, "set", *cache)) == without_provenance(tmp_path / "local")

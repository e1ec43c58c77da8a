"""The contracts that users build on, as a golden file: what a set holds, commands print and Python programs call.

The recipe is small and has every kind of drop; its text is made up here. The set is read by numpy, pyarrow and
zstandard alone. After a change that is meant, write the file again and look at the difference:

    python -m tests.test_golden
"""

import hashlib
import importlib
import inspect
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard

from tests.support.builds import call_here, read_json
from tests.support.recipes import write_texts

GOLDEN = Path(__file__).parent / "golden/contracts.json"
PUBLIC = {
    "pipeline": ("build_set", "plan_set", "load_recipe"),
    "shards": ("open_set",),
    "trainer": ("train_model", "load_model"),
    "shards.torch": ("TokenStream", "TokenWindows", "collate_windows"),
}
WORDS = ["the", "of", "and", "to", "that", "with"]
WORDS += [a + b for a in ("ri", "mo", "ta", "le") for b in ("ver", "rning", "ble", "af")]
OF_SOURCES = {"sources", "dropped", "splits"}
"""Keys whose value maps names: of sources, reasons, splits."""


def write_recipe(folder: Path) -> Path:
    """Write two sources of made-up text and a recipe that drops documents for every kind of reason; return its path."""
    rng = random.Random(11)

    def text(sentences: int) -> str:
        return " ".join(" ".join(rng.choices(WORDS, k=rng.randint(6, 14))).capitalize() + "." for _ in range(sentences))

    items = [
        f"Which of the {number} rivers that flow past the old mill is the longest one of them all?"
        for number in range(3)
    ]
    pages = [text(rng.randint(8, 20)) for _ in range(240)]
    pages += ["Short.", "never wanted " + text(8), pages[0], *(f"{text(5)} {item} {text(5)}" for item in items)]
    pages += [f"{pages[number]} One more." for number in range(5, 9)]
    notes = [text(12) for _ in range(120)] + ["", pages[1]]
    table = pa.table({"text": pages, "score": [row % 9 for row in range(len(pages))]})
    pq.write_table(table, folder / "pages.parquet", row_group_size=100)
    write_texts(folder / "notes.jsonl", notes)
    write_texts(folder / "items.jsonl", items, "question")
    (folder / "block.txt").write_text("\n".join(xxhash.xxh3_128_hexdigest(page.encode()) for page in pages[20:23]))
    path = folder / "golden.toml"
    path.write_text(
        """
name = "golden"
seed = 3
drop_if_matches = ["^never wanted"]
drop_hashes = ["block.txt"]
[[sources]]
name = "pages"
paths = ["pages.parquet"]
keep = { score = ">= 1" }
weight = 3
[[sources]]
name = "notes"
paths = ["notes.jsonl"]
take = 0.9
weight = 1
[clean.gopher]
max_dropped = 1
min_words = 20
min_stop_words = 2
[clean.near_duplicates]
action = "drop"
max_dropped = 1
[[evaluations]]
name = "rivers"
paths = ["items.jsonl"]
text = "question"
action = "drop"
max_dropped = 1
[tokenizer]
vocab_size = 350
special_tokens = ["<|endoftext|>", "<|pad|>"]
[mix]
when_short = "shrink"
[[mix.phases]]
name = "main"
share = 0.75
[[mix.phases]]
name = "last"
share = 0.25
weights = { notes = 3 }
[split]
val_tokens = 3_000
[shards]
tokens = 4_000
"""
    )
    return path


def run(*arguments: str | Path, expect: int = 0) -> Any:
    """Run a command of `tokenmill` with `--json` and return what it prints."""
    return call_here(*arguments, "--json", expect=expect).json


def shape(value: Any, *, named: bool = False) -> Any:
    """Return the keys of a JSON value at every depth; of a list, those of all its elements together."""
    if isinstance(value, dict):
        if named:
            return {"NAME": shape(list(value.values()))}
        return {key: shape(item, named=key in OF_SOURCES) for key, item in sorted(value.items())}
    if isinstance(value, list):
        shapes = [shape(item) for item in value]
        return merge(shapes) if shapes else []
    return type(value).__name__ if value is not None else "null"


def merge(shapes: list[Any]) -> Any:
    """Return one shape for the elements of a list."""
    if all(isinstance(item, dict) for item in shapes):
        keys = sorted({key for item in shapes for key in item})
        return {key: merge([item[key] for item in shapes if key in item]) for key in keys}
    return shapes[0]


def read_set(folder: Path) -> dict[str, Any]:
    """Return what a set holds, by independent readers: names, keys, columns, tokens, documents, reasons."""
    manifest = read_json(folder / "manifest.json")
    tokens, documents = {}, {}
    for shard in manifest["shards"]:
        with (folder / f"{shard['name']}.bin.zst").open("rb") as file:
            data = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
        ids = np.frombuffer(data, np.dtype(manifest["dtype"]).newbyteorder("<"))
        table = pq.read_table(folder / f"{shard['name']}.docs.parquet")
        ends = table["start"].to_numpy() + table["length"].to_numpy() - 1
        assert (ids[ends] == manifest["tokenizer"]["eos_id"]).all()
        assert len(ids) == shard["tokens"] == ends[-1] + 1
        columns = [f"{field.name}: {field.type}" for field in table.schema]
        rows = [
            (source, row, digest.hex(), length)
            for source, row, digest, length in zip(
                *(table[name].to_pylist() for name in ("source", "row", "hash", "length")), strict=True
            )
        ]
        tokens[shard["name"]] = hashlib.sha256(data).hexdigest()
        documents[shard["name"]] = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    return {
        "files": sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")),
        "manifest": shape(manifest),
        "shard_metadata": shape(read_json(folder / "train-00000.json")),
        "document_table": columns,
        "tokens": tokens,
        "documents": documents,
        "tokenizer": hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest(),
        "dropped": {source["name"]: source["dropped"] for source in manifest["sources"]},
        "splits": manifest["splits"],
    }


def contracts(folder: Path) -> dict[str, Any]:
    """Return the contracts of the set, of the commands, and of the Python functions."""
    recipe, out = write_recipe(folder), folder / "set"
    built = run("build", recipe, "--out", out, "--work", folder / "work", "--workers", "1")
    found = {"set": read_set(out)}
    printed = {
        "build": built,
        "validate": run("validate", out),
        "inspect": run("inspect", out),
        "trace": run("trace", out, "--text", "the"),
    }
    (out / "train-00000.json").write_text("{}")
    printed["validate, damaged"] = run("validate", out, expect=1)
    run("validate", folder / "nothing", expect=2)
    found["json"] = {name: shape(value) for name, value in printed.items()}
    found["python"] = {
        f"{package}.{name}": str(inspect.signature(getattr(importlib.import_module(package), name)))
        for package, names in PUBLIC.items()
        for name in names
    }
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return contracts(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("part", ["set", "json", "python"])
def test_contracts_hold(part: str, found: dict[str, Any]):
    assert found[part] == read_json(GOLDEN)[part]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        GOLDEN.write_text(json.dumps(contracts(Path(temporary)), indent=1, sort_keys=True) + "\n")

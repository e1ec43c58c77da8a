"""Builds from a Hub on loopback: the command with its environment, recipes, and the content of a set."""

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.builds import digests, read_json, run_program
from tests.support.recipes import Table, source, write_recipe
from tests.support.servers.hub import Hub

ROOT = Path(__file__).parents[2]


class Command:
    """The program against a Hub, with a home of its own."""

    def __init__(self, hub: Hub, folder: Path):
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TOKENMILL_"))},
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hf"),
            "TOKENMILL_TIMEOUT_S": "3",
        }

    def __call__(self, *arguments: str | Path, expect: int = 0, cwd: Path = ROOT, **environment: str) -> str:
        """Run a command to its end; return its stdout, or its stderr if it is expected to fail."""
        done = run_program(*arguments, cwd=cwd, env=self.environment | environment, expect=expect)
        assert "Traceback" not in done.stderr
        return done.stderr if expect else done.stdout

    def build(self, recipe: Path, name: str, *arguments: str | Path, **options: Any) -> Path:
        """Build into a folder of this name and return it."""
        self("build", recipe, "--out", self.folder / name, "--workers", "1", "--json", *arguments, **options)
        return self.folder / name


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


def files_recipe(path: Path, folder: Path) -> Path:
    """Write a recipe of the same sources as files on disk."""
    files = [source(name, folder / repo / glob, keep=keep) for name, (repo, _, glob, keep) in SOURCES.items()]
    return write_recipe(path, *files, **SIZES)


def without_provenance(out: Path) -> dict[str, Any]:
    """Return the content of a set without its provenance."""
    tokens = {name: digest for name, digest in digests(out).items() if name.endswith((".bin.zst", "tokenizer.json"))}
    tables = {path.name: pq.read_table(path).drop_columns(["unit"]).to_pydict() for path in out.glob("*.docs.parquet")}
    manifest = read_json(out / "manifest.json")
    facts = [{**source, "revision": None} for source in manifest["sources"]]
    return {"tokens": tokens, "tables": tables, "sources": facts, "mix": manifest["mix"]}

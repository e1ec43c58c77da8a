"""Bad inputs and what is said of each: the cases of `tests/golden/refusals.txt`, whose beginning explains them.

    python -m tests.support.refusals [WORD ...]

runs the cases, or those of which a line has one of the words, and writes what is said now into that file.
"""

import contextlib
import gzip
import importlib
import json
import os
import pickle
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.support.builds import build_here, call_here, read_json
from tests.support.file_bytes import to_ipc, to_parquet
from tests.support.recipes import write_small_recipe

GOLDEN = Path(__file__).parents[1] / "golden" / "refusals.txt"
SHARED = ("set", "set.work", "run", "exported")
"""Folders of a case's world that are built once, and copied for a case that changes them."""
TRAIN = """
name = "tiny"
model.kind = "llama"
model.hidden_size = 32
model.num_hidden_layers = 1
model.num_attention_heads = 2
model.max_position_embeddings = 32
train = { seq_len = 16, global_batch = 4, micro_batch = 2, steps = 4, precision = "fp32" }
optimizer.lr = 1e-2
schedule.warmup_steps = 1
checkpoint.every_steps = 2
eval.max_tokens = 200
"""
PLACES = {
    "Cache": "shards.stores.cache",
    "absolute_place": "shards.stores.open",
    "EvalTaskConfig": "trainer.recipe.eval_config",
    "KNOWN_TASKS": "shards.eval_tasks.known",
    "Path": "pathlib",
    "ROLES": "shards.format.chat",
    "TokenStream": "shards.torch",
    "TokenWindows": "shards.torch",
    "TrainRecipe": "trainer.recipe",
    "check_settings": "shards.config",
    "count_up": "tests.support.token_sets",
    "delete_older": "trainer.checkpoint.folders",
    "load_file": "safetensors.torch",
    "load_train_recipe": "trainer.recipe",
    "open_store": "shards.stores.open",
    "parse_hub_address": "shards.stores.hub_store",
    "parse_predicate": "pipeline.recipe.predicates",
    "parse_size": "pipeline.recipe.key_values",
    "read_items": "shards.eval_tasks.read",
    "read_vocabulary": "shards.format.vocabulary",
    "save": "safetensors.torch",
    "train_llama2": "tests.support.tokenizers",
    "utf8": "trainer.commands.sample",
    "with_metaspace": "tests.support.tokenizers",
    "reseal": "tests.support.fuzz.damage",
    "write_run": "tests.support.compared_runs",
    "write_token_set": "shards.format.writer",
}
"""The modules of names that Python calls use beside `pipeline`, `shards` and `trainer`."""


PROGRESS = re.compile(r"\w+: (\d+%|$|\d+ tasks? in )|[\d,]+ parameters on ")
"""How far a stage is, shown or not by how long it takes; on how many threads a model trains."""


@dataclass(frozen=True)
class Case:
    """One case: its lines without what is said, and what is said."""

    section: str
    lines: list[str]
    said: list[str]

    def __str__(self) -> str:
        """Name the case by its section and its last line."""
        return f"{self.section} {self.lines[-1][:90]}"


def list_cases() -> list[Case]:
    """Return the cases of the golden file, in order."""
    cases, section = [], ""
    for block in re.split(r"\n{2,}", GOLDEN.read_text(encoding="utf-8")):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        section = next((line[3:] for line in block.splitlines() if line.startswith("## ")), section)
        if lines:
            told = next((at for at, line in enumerate(lines) if line.startswith("|")), len(lines))
            cases.append(Case(section, lines[:told], lines[told:]))
    return cases


class World:
    """What every case finds in its folder: `recipe.toml` with 40 notes, `train.toml`, a set and a run of them."""

    def __init__(self, folder: Path) -> None:
        """Write the recipes; the set and the run are built when a case first names them."""
        self.folder = folder
        write_small_recipe(folder, split={"val_tokens": 500})
        (folder / "train.toml").write_text(TRAIN)
        (folder / "data.toml").write_text(
            'name = "data"\nsources = [{ name = "s", paths = ["data/*"], weight = 1 }]\ntokenizer.vocab_size = 300\n'
        )

    def build(self, name: str) -> Path:
        """Return the folder of the set, of its work folder, of the run, or of its model for transformers."""
        if not (self.folder / "set").exists():
            build_here(self.folder / "recipe.toml", self.folder / "set")
        made = {"run": "train train.toml --shards set --run run", "exported": "export-model run --to hf --out exported"}
        if name in made and not (self.folder / name).exists():
            if name == "exported":
                self.build("run")
            call_here(*made[name].split(), cwd=self.folder, expect=0)
        return self.folder / name

    @contextlib.contextmanager
    def enter(self, lines: list[str]) -> Iterator[Path]:
        """Make a case's own folder, with what its lines name, and work in it."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            folder = Path(name)
            shutil.copytree(self.folder / "notes", folder / "notes")
            for recipe in self.folder.glob("*.toml"):
                shutil.copy(recipe, folder)
            for shared in SHARED:
                if any(re.search(rf"(?<![\w./-]){re.escape(shared)}(?![\w.-])", line) for line in lines):
                    shutil.copytree(self.build(shared), folder / shared)
            with contextlib.chdir(folder):
                yield folder


def parquet(**columns: list[Any]) -> bytes:
    """Return a Parquet file."""
    return to_parquet(pa.table(columns), None)


def arrow(new: Any = pa.ipc.new_file, **columns: list[Any]) -> bytes:
    """Return an Arrow IPC file, or as `arrow(stream, ...)` a stream."""
    return to_ipc(pa.table(columns), new)


def table(path: str, **changes: Callable[[list[Any]], list[Any]]) -> bytes:
    """Return a Parquet file after changes of its columns' values, in their types."""
    rows = pq.read_table(path)
    columns = rows.to_pydict()
    columns |= {name: change(columns[name]) for name, change in changes.items()}
    return to_parquet(pa.table(columns, rows.schema), None)


def edit(path: str, change: Callable[[Any], Any]) -> str:
    """Return the text of a JSON file after a change of its values."""
    data = read_json(Path(path))
    change(data)
    return json.dumps(data)


class Names(dict[str, Any]):
    """The names that an expression may use, imported when it does."""

    def __init__(self) -> None:
        """Begin with the helpers for files; `read(path)` gives the bytes of one."""
        super().__init__(gzip=gzip, json=json, os=os, pickle=pickle, zstandard=zstandard)
        self.update(parquet=parquet, table=table, arrow=arrow, edit=edit)
        self.update(stream=pa.ipc.new_stream, read=lambda path: Path(path).read_bytes())

    def __missing__(self, name: str) -> Any:
        """Import a name."""
        if name in PLACES:
            return getattr(importlib.import_module(PLACES[name]), name)
        if name in ("pipeline", "shards", "torch", "trainer"):
            return importlib.import_module(name)
        raise KeyError(name)


def say(world: World, case: Case) -> list[str]:
    """Do what a case's lines say, and return what is said, as its lines; a time is `T s` there, a digest `SHA256`."""
    said: list[str] = []
    with world.enter(case.lines) as folder, patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
            del os.environ[name]
        for line in case.lines:
            sign, _, rest = line.partition(" ")
            path, _, text = rest.partition(" ")
            if sign in "+=":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            if sign == "+":
                with Path(path).open("a", encoding="utf-8") as file:
                    file.write(text + "\n")
            elif sign == "=":
                data = eval(text, Names())
                if data is not None:  # an expression may make something else there, such as a pipe
                    Path(path).write_bytes(data.encode() if isinstance(data, str) else data)
            elif sign == "-":
                Path(path).unlink()
            elif sign == "%":
                os.environ[path] = text
            elif sign == "$":
                done = call_here(*shlex.split(rest))
                lines = (done.stdout + done.stderr).splitlines()
                said += [f"exit {done.returncode}", *(one for one in lines if not PROGRESS.match(one))]
            elif sign == ">>>":
                said += _say_error(rest)
            else:
                raise ValueError(f"{GOLDEN}: a line begins with {sign!r}: {line}")
    told = [one.replace(f"{folder}/", "").replace(str(folder), ".") for one in said]
    told = [re.sub(r" \([0-9.]+ [A-Za-z ]+/s\)", "", one) for one in told]  # a speed
    told = [re.sub(r"\.[\w.-]+\.(tmp|unfinished)(?=['/])", r".NAME.\1", one) for one in told]
    told = [re.sub(r"\b(?=[0-9a-f]*[a-f])[0-9a-f]{64}\b", "SHA256", one) for one in told]
    return ["| " + re.sub(r"\b[0-9.]+ s([ ,)]|$)", r"T s\1", one) for one in told]


def _say_error(expression: str) -> list[str]:
    try:
        eval(expression, Names())
    except Exception as error:  # noqa: BLE001  what is raised is what is compared
        return f"{type(error).__name__}: {error}".splitlines()
    return ["nothing is raised"]


def write_golden(words: list[str]) -> None:
    """Write what is said now into the golden file, of the cases with one of the words; all without words."""
    text = GOLDEN.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for case in list_cases():
            if not words or any(word in line for word in words for line in case.lines):
                given = "\n".join(case.lines)
                before, after = "\n".join([given, *case.said]), "\n".join([given, *say(world, case)])
                assert text.count(f"{before}\n") == 1, f"twice: {given}"
                text = text.replace(f"{before}\n", f"{after}\n")
    GOLDEN.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_golden(sys.argv[1:])

"""A recipe's own Python functions as a step of cleaning, and rows that a Python program gives as a source."""

# pyright: basic

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pipeline
import shards
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.clean.steps import clean_batch
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import TextBatch
from shards.errors import InputError
from shards.format.content_hash import hash_document
from tests.support.builds import build_here, call_here, digests, real_documents, run_build
from tests.support.recipes import overrides, source, write_recipe, write_texts

RULES = """
from __future__ import annotations
import parts.words
from dataclasses import dataclass
from helpers import is_long
@dataclass
class Rule:
    word: str = "lambda"
def keep(texts):
    from parts import shout
    print("asked for", len(texts))
    return [False if Rule().word in t else (False, "too long") if is_long(t) else shout(t) for t in texts]
"""
MODULES = {
    "rules": RULES,
    "helpers": "import parts.words as words\nis_long = lambda text: len(text) > words.MOST\n",
    "parts/__init__": "from . import words as own\nshout = lambda text: text.replace('Python', own.WORD)\n",
    "parts/words": "import json\nWORD: object = 'PYTHON'\nMOST = 1200\nassert __annotations__ == {'WORD': object}\n",
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe of three sources whose function imports a module and a package beside it."""
    for folder in ("parts", "json"):  # one of them is data, and has the name of a package
        (tmp_path / folder).mkdir()
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    for number in range(3):
        write_texts(tmp_path / f"{number}.jsonl", real_documents()[number::3])
    sources = [source(f"s{number}", f"{number}.jsonl") for number in range(3)]
    clean = {"python": [{"function": "rules:keep", "packages": ["numpy"], "max_dropped": 0.5}]}
    return write_recipe(tmp_path / "recipe.toml", *sources, clean=clean)


def test_a_function_drops_and_changes_documents(recipe: Path, tmp_path: Path) -> None:
    done = build_here(recipe, tmp_path / "set")  # what the function prints is not in the JSON on stdout
    texts = real_documents()
    gone = [text for text in texts if "lambda" in text]
    long = [text for text in texts if len(text) > 1200 and text not in gone]
    for reason, expected in {"rules:keep": gone, "rules:keep: too long": long}.items():
        assert sum(entry["dropped"].get(reason, 0) for entry in done["sources"]) == len(expected) > 0
    left = {text: text.replace("Python", "PYTHON") for text in texts if text not in (*gone, *long)}
    (shard,) = shards.open_set(tmp_path / "set").shards
    assert {*shard.documents(["hash"])["hash"].to_pylist()} <= {hash_document(text.encode()) for text in left.values()}
    assert sum(entry["documents_available"] for entry in done["sources"]) == len(left)
    assert "clean.python.rules:keep changed the text of" in done["stderr"]
    stored = json.loads((tmp_path / "set/recipe.json").read_text())["sources"][0]["clean"]["python"][0]
    assert stored["function"].startswith("rules:keep#sha256=")
    assert stored["packages"] == [f"numpy=={np.__version__}"]
    changed = next(text for text, after in left.items() if text != after)
    for text, answer in ((gone[0], "rules:keep\n"), (changed, "in the set, train-00000")):
        (tmp_path / "text.txt").write_text(text)
        told = call_here("trace", tmp_path / "set", "--document", tmp_path / "text.txt").stdout
        assert answer in told
        assert ("changed by clean.python.rules:keep" in told) == (text == changed)
    assert "rules:keep: too long" in call_here("clean-report", tmp_path / "set.work").stdout
    run_build(recipe, tmp_path / "four", "--workers", "4")
    assert digests(tmp_path / "set") == digests(tmp_path / "four")


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    page = (Path(shards.__file__).parents[1] / "docs/cleaning.md").read_text().partition("## Your own rule")[2]
    code, table = (page.split(f"```{language}\n")[1].split("```")[0] for language in ("python", "toml"))
    tables = tomllib.loads(table)["sources"]["clean"]["python"]
    given = pin(tmp_path, code, "my_rules", **tables[0])
    assert clean(given, ["Lorem ipsum", "a\n\n\n\nb", "c"]).text.to_pylist() == ["a\n\nb", "c"]


def test_a_function_that_ends_its_process_is_named(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text("import os\ndef keep(texts):\n    os._exit(1)\n")
    ended = call_here("plan", recipe)
    assert ended.returncode == 1, ended.stdout
    assert "lost 3 times" in ended.stderr
    assert "or rules:keep ended it (os._exit, a crash in a library): correct that." in ended.stderr


def test_a_changed_module_runs_again(recipe: Path, tmp_path: Path) -> None:
    first = pipeline.build_set(recipe, out=tmp_path / "set", workers=1)
    assert pipeline.build_set(recipe, out=tmp_path / "set").tasks_run == 0
    words = tmp_path / "parts/words.py"
    words.write_text("MOST, WORD = 900, ''")
    told = call_here("build", recipe, "--out", tmp_path / "set", "--dry-run").stdout
    assert "sources.s0.clean.python has changed" in told
    second = pipeline.build_set(
        recipe, out=tmp_path / "set", workers=1
    )  # in the process that has imported the old ones
    assert second.manifest.splits["train"].tokens < first.manifest.splits["train"].tokens
    other = overrides(f'clean.python=[{{function = "{tmp_path}/rules:keep", packages = ["numpy==1.0"]}}]')
    assert "needs numpy==1.0; installed is 2" in build_here(recipe, tmp_path / "set", *other, expect=2)["stderr"]
    words.write_text("")
    told = call_here("trace", tmp_path / "set", "--document", words).stderr
    assert "the function has changed" in told


def pin(folder: Path, code: str, module: str = "rules", **keys: Any) -> SourceRecipe:
    """Return a source with the function `keep` of a module of this text."""
    (folder / f"{module}.py").write_text(code)
    (folder / "a.jsonl").write_text("{}")
    tables = [{"function": f"{module}:keep"} | keys]
    path = write_recipe(folder / "recipe.toml", source("a", "a.jsonl"), clean={"python": tables})
    return load_checked_recipe(path).sources[0]


TEXTS = [f"text {number}" for number in range(101)]


def clean(given: SourceRecipe, texts: list[str] = TEXTS) -> Documents:
    batch = TextBatch(pa.array(texts, pa.large_string()), np.arange(len(texts), dtype=np.uint32))
    return clean_batch(given, batch, Tally())


def test_a_module_travels_with_its_task(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def keep(texts):\n    return [text.upper() for text in texts]\n")
    pinned = pickle.dumps(pin(tmp_path, "from helpers import keep"))
    for file in tmp_path.glob("*.py"):
        file.unlink()
    run = f"import pickle, {__name__} as tests; print(tests.clean(pickle.loads({pinned!r})).text[100])"
    assert subprocess.run([sys.executable, "-c", run], capture_output=True, check=True).stdout == b"TEXT 100\n"


def test_a_recipe_of_others_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, manifest, ran = (tmp_path / name for name in ("rules.py", "manifest.json", "ran"))
    pin(tmp_path, "keep = list")
    module.write_text(f"import pathlib\npathlib.Path({str(ran)!r}).touch()\nkeep = len\n")
    for strange in ("in a set", "names a module", "another user's"):
        if strange == "in a set":
            manifest.touch()
        elif strange == "names a module":
            manifest.unlink()
        else:
            os.chown(module, 7, -1) if os.geteuid() == 0 else monkeypatch.setattr("os.geteuid", lambda: 7)
        function = f"../{tmp_path.name}/rules:keep" if strange == "names a module" else "rules:keep"
        changes = [("", ("clean", "python"), [{"function": function}])]
        with pytest.raises(InputError, match=rf"{strange}.* so rules:keep is not run. .*--allow-code"):
            load_checked_recipe(tmp_path / "recipe.toml", changes=changes)
        assert not ran.exists()
    load_checked_recipe(tmp_path / "recipe.toml", allow_code=True)
    assert ran.exists()


def test_rows_of_a_program_are_a_source(tmp_path: Path) -> None:
    mine = {"name": "my.rows", "weight": 1, "keep": {"even": "== true"}}
    tables = {"name": "r", "sources": [mine], "tokenizer": {"vocab_size": 300}}
    texts = real_documents()[:900]

    def build(rows: Any, **keys: Any) -> Any:
        return pipeline.build_set(tables, out=tmp_path / "set", workers=1, sources={"my.rows": rows}, **keys)

    def rows(count: int = 900, end: Callable[[], object] = list) -> Iterator[dict[str, Any]]:
        yield from ({"text": text, "even": number % 2 == 0} for number, text in enumerate(texts[:count]))
        end()

    first, folder = build(rows()), tmp_path / "set.work/rows/my.rows"
    kept = [*folder.iterdir()]
    assert first.manifest.sources[0].documents_available == 450
    assert build(rows()).tasks_run == 0
    assert [*folder.iterdir()] == kept
    build(list(rows(500)))
    (folder.parent / "earlier").mkdir()
    build(list(rows(500)), prune=True)
    assert [*folder.parent.iterdir()] == [folder]
    (other,) = folder.iterdir()
    assert other != kept[0]
    with pytest.raises(RecursionError, match="half-way"):
        build(rows(5, lambda: exec("raise RecursionError('half-way')")))
    assert [*folder.iterdir()] == [other]
    assert pipeline.plan_set(tables, sources={"my.rows": [*rows()]}).sources[0].documents == 450

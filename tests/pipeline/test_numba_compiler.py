"""Code that numba compiles is kept by what it was made of, and by nobody who does not need it."""

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from pipeline import numba_compiler
from pipeline.clean.measures import measure
from pipeline.clean.measures.names import MEASURES
from tests.support.builds import call_here
from tests.support.recipes import write_small_recipe

CALLER = "from pipeline.numba_compiler import compiled_and_kept\nfrom own.callee import one\n"
CALLER += "@compiled_and_kept\ndef add(number):\n    return number + one()\nprint(add(1), dict(add.stats.cache_hits))\n"
CALLEE = "from pipeline.numba_compiler import compiled\n@compiled\ndef one():\n    return 1\n"


def run(code: str, cwd: Path | None = None) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=cwd).stdout


def test_a_change_of_a_called_function_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The function itself is in another file, which does not change."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "caller.py").write_text(CALLER)
    (folder / "callee.py").write_text(CALLEE)
    outputs = [run("import own.caller", tmp_path) for _ in range(2)]
    (folder / "callee.py").write_text(CALLEE.replace("return 1", "return 30"))
    outputs.append(run("import own.caller", tmp_path))
    assert outputs == ["2 {}\n", "2 {(int64,): 1}\n", "31 {}\n"]


def test_where_code_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sources = Path(measure.__file__).parent
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    folder = Path(numba_compiler.find_numba_folder(sources))
    assert folder.parent == tmp_path / "kept"
    assert folder.name.startswith("measures-")
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Path(numba_compiler.find_numba_folder(sources)) == tmp_path / "tokenmill" / folder.name


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file/below"))
    assert numba_compiler.find_numba_folder(tmp_path) == ""
    assert not numba_compiler.is_to_compile(tmp_path)  # not beforehand: each process does

    def add_one(number: int) -> int:
        return number + 1

    assert numba_compiler.compiled_and_kept(add_one)(1) == 2


@pytest.mark.parametrize(
    ("table", "what", "file"),
    [
        ({"c4": {"when": "encode", "min_sentences": "off"}}, "the measures", "families"),  # the mix' sample is cleaned
        ({"near_duplicates": {}}, "the search for near-duplicates", "shingles"),
    ],
)
def test_a_build_says_what_it_compiles_before(
    table: dict[str, Any], what: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = write_small_recipe(tmp_path, tokenizer={"vocab_size": 260}, clean=table)
    # This process has the code in memory, and compiles nothing again.
    measure.measure_documents(cast("Any", pa.array(["a"], pa.large_string())), MEASURES)

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
    said = call_here("build", recipe, "--out", tmp_path / "first").stderr
    assert said.index(f"compiling {what}, once") < said.index("mix: ")
    (Path(numba_compiler.find_numba_folder(Path(measure.__file__).parent)) / f"{file}.nbc").touch()
    said = call_here("build", recipe, "--out", tmp_path / "second").stderr
    assert "mix: " in said
    assert "compiling" not in said


def test_a_build_without_presets_does_not_load_numba():
    code = "import sys; import pipeline.builder.build, pipeline.numba_compiler; from pipeline.engine import executors"
    code += "; [__import__(module) for module in executors._PRELOADED]"
    assert run(f"{code}; print('numba' in sys.modules)") == "False\n"

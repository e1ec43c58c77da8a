"""A recipe's own Python functions as a step of cleaning, and rows that a Python program gives as a source."""

# pyright: basic

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import pipeline
import shards
from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.clean.functions.process import close_functions
from pipeline.clean.steps import clean_batch, identify_steps
from pipeline.clean.tally import Documents, Tally
from pipeline.recipe.schema import SourceRecipe
from shards.errors import InputError
from shards.format.content_hash import hash_document
from tests.support.builds import (
    Built,
    build_here,
    call_here,
    digests,
    real_documents,
    run_build,
    run_program,
    wait_until,
)
from tests.support.reading import batch_of
from tests.support.recipes import overrides, source, write_recipe, write_texts
from tests.support.started import Started, attempts

RULES = """
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


@pytest.fixture(autouse=True)
def _no_function_is_left() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    yield
    close_functions()


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


def test_a_function_drops_and_changes_documents(recipe: Path, tmp_path: Path):
    done = build_here(recipe, tmp_path / "set", "--allow-code")  # what the function prints is not in the JSON on stdout
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
        told = call_here("trace", tmp_path / "set", "--document", tmp_path / "text.txt", "--allow-code").stdout
        assert answer in told
        assert ("changed by clean.python.rules:keep" in told) == (text == changed)
    assert "rules:keep: too long" in call_here("clean-report", tmp_path / "set.work").stdout
    run_build(recipe, tmp_path / "four", "--workers", "4", "--allow-code")
    assert digests(tmp_path / "set") == digests(tmp_path / "four")


def test_the_example_of_the_page_runs(tmp_path: Path):
    page = (Path(shards.__file__).parents[1] / "docs/cleaning.md").read_text().partition("## Your own rule")[2]
    code, table = (page.split(f"```{language}\n")[1].split("```")[0] for language in ("python", "toml"))
    tables = tomllib.loads(table)["sources"]["clean"]["python"]
    given = pin(tmp_path, code, "my_rules", **tables[0])
    assert clean(given, ["Lorem ipsum", "a\n\n\n\nb", "c"]).text.to_pylist() == ["a\n\nb", "c"]


def test_a_changed_module_runs_again(recipe: Path, tmp_path: Path):
    first = pipeline.build_set(recipe, out=tmp_path / "set", workers=1, allow_code=True)
    assert pipeline.build_set(recipe, out=tmp_path / "set").tasks_run == 0
    words = tmp_path / "parts/words.py"
    words.write_text("MOST, WORD = 900, ''")
    told = call_here("build", recipe, "--out", tmp_path / "set", "--dry-run").stdout
    assert "sources.s0.clean.python has changed" in told
    second = pipeline.build_set(recipe, out=tmp_path / "set", workers=1, allow_code=True)
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
    path = write_recipe(
        folder / "recipe.toml", source("a", "a.jsonl"), clean={"python": [{"function": f"{module}:keep"} | keys]}
    )
    return load_checked_recipe(path, allow_code=True).sources[0]


TEXTS = [f"text {number}" for number in range(101)]


def clean(given: SourceRecipe, texts: list[str] = TEXTS) -> Documents:
    return clean_batch(given, batch_of(texts), Tally())


def test_a_module_travels_with_its_task(tmp_path: Path):
    (tmp_path / "helpers.py").write_text("def keep(texts):\n    return [text.upper() for text in texts]\n")
    pinned = pickle.dumps(pin(tmp_path, "from helpers import keep"))
    for file in tmp_path.glob("*.py"):
        file.unlink()
    run = f"import pickle, {__name__} as tests; print(tests.clean(pickle.loads({pinned!r})).text[100])"
    assert subprocess.run([sys.executable, "-c", run], capture_output=True, check=True).stdout == b"TEXT 100\n"


@pytest.fixture
def rule(tmp_path: Path) -> Path:
    """A recipe of ten documents, whose function leaves the file `ran` where it is loaded."""
    write_texts(tmp_path / "a.jsonl", real_documents()[:10])
    ran = f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    (tmp_path / "rules.py").write_text(ran + "keep = lambda texts: [text.upper() for text in texts]\n")
    clean = {"python": [{"function": "rules:keep"}]}
    return write_recipe(tmp_path / "recipe.toml", source("a", "a.jsonl"), clean=clean)


def test_code_runs_only_when_the_call_allows_it(rule: Path, tmp_path: Path):
    ran, out, text = tmp_path / "ran", tmp_path / "set", tmp_path / "text.txt"
    text.write_text(real_documents()[3])
    allowed = pipeline.load_recipe(rule, allow_code=True)

    def is_refused(run: Callable[[], Any]) -> bool:
        with pytest.raises(InputError, match=r"rules.py: rules:keep is a function .* --allow-code"):
            run()
        return not ran.exists()

    # No recipe carries the permission: neither an object nor a set's recipe.json.
    assert is_refused(lambda: pipeline.build_set(rule, out=out))
    assert is_refused(lambda: pipeline.build_set(allowed, out=out, workers=1))
    assert is_refused(lambda: pipeline.plan_set(allowed))
    assert not (tmp_path / "set.work/encode").exists()
    pipeline.build_set(rule, out=out, workers=1, allow_code=True)
    ran.unlink()
    assert is_refused(lambda: pipeline.plan_set(out / "recipe.json"))
    assert "is_allowed" not in (out / "recipe.json").read_text()
    # What is kept needs none, nor does a dry run; a trace loads the function only where no copy is found.
    assert pipeline.build_set(rule, out=out, workers=1).tasks_run == 0
    assert pipeline.build_set(rule, out=out, workers=1, overrides=["split.val_tokens=9"]).tasks_run
    call_here("build", rule, "--out", out, "--dry-run", "--set", "sources.a.min_bytes=2", expect=0)
    told = call_here("trace", out, "--document", text)
    assert (told.returncode, "give --allow-code" in told.stderr, ran.exists()) == (2, True, False)
    told = call_here("trace", out, "--document", text, "--allow-code", "--json")
    assert told.json["build"]["answer"] == "in the set"
    assert ran.exists()


def test_a_function_sees_only_the_variables_that_its_table_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = "import os\nkeep = lambda texts: [repr(sorted(os.environ)) + os.environ.get('WORD', '') for _ in texts]"
    monkeypatch.setenv("WORD", "one")
    monkeypatch.setenv("OTHER", "two")
    hidden, named = pin(tmp_path, code), pin(tmp_path, code, env=["WORD", "ABSENT"])
    assert {"'HOME'", "'OTHER'", "'WORD'"} & {*clean(hidden).text[0].as_py()[1:-1].split(", ")} == {"'HOME'"}
    assert clean(named).text[0].as_py().endswith("]one")
    monkeypatch.setenv("WORD", "three")
    changed = pin(tmp_path, code, env=["WORD", "ABSENT"])
    assert identify_steps(named) != identify_steps(changed)
    assert "three" not in json.dumps(identify_steps(changed))


ENDED, FAILED = "rules:keep ({}/rules.py) ended its process", "rules:keep ({}/rules.py) failed: "
AGAIN, WANTED = "when asked again. A rule must always give the same answer", ". Expected None or True to keep the text;"
SLEEP = "98765.4321"
FORGED = (
    "garbage",
    '{"verdicts": [null]}',
    "[3]",
    "[' * 100_000 + b'",
    '{"fault": 5, "verdicts": [null]}',
    '{"fault": "x", "index": 999}',
    '{"fault": "", "index": 0}',
    """{"verdicts": [-1' + b', null' * 100 + b']}""",
    """{"verdicts": [[5]' + b', null' * 100 + b']}""",
    """{"verdicts": [5' + b', null' * 100 + b']}\\nab""",
)
"""Answers that a function writes itself."""
FUNCTIONS: list[tuple[str, int | str]] = [
    # It ends or stops its process, or takes away what that needs.
    (
        "import os\ndef keep(t): return os._exit(3) if 'text 37' in t else t",
        f"row 37: {ENDED} (exit status 3)",
    ),
    ("import os\ndef keep(t): os.kill(os.getpid(), 9)", f"row 0: {ENDED} (SIGKILL)"),
    ("import os\ndef keep(t): os.kill(os.getpid(), 19)", f"row 0: {ENDED} (SIGKILL)"),
    ("import os\ndef keep(t): os.kill(os.getpid(), 40)", f"row 0: {ENDED} (exit status 216)"),
    ("import os\nos._exit(4)", "rules:keep cannot be imported: it ended its process (exit status 4)."),
    ("import os\ndef keep(t): return os.kill(os.getppid(), 15) or t", 101),
    ("import os\ndef keep(t): return os.kill(os.getppid(), 19) or t", 101),
    ("import os\ndef keep(t): os.kill(os.getppid(), 19) or os._exit(5)", f"row 0: {ENDED} (exit status 5)"),
    ("import os\ndef keep(t): return os.closerange(0, 21) or t", 101),
    ("import os\ndef keep(t): return os.closerange(0, 999) or t", f"row 0: {ENDED} (exit status 1)"),
    *(
        (f"import os\nsend = lambda: os.write(200, b'{sent}\\n')\n{code}", "ended its process")
        for sent in FORGED
        for code in ("keep = lambda texts: send() and texts", "send()\nkeep = list")
    ),
    ("import sys\ndef keep(t): return [sys.stdout.close() or sys.stdin.read() == '' for _ in t[:1]] * len(t)", 101),
    ("def keep(t): return print('x' * 10**7) or t", 101),
    ("import json\njson.dumps = None\ndef keep(t): return t", f"rules:keep cannot be imported: it {ENDED[25:]}"),
    ("import signal\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\ndef keep(t): return t", 101),
    # It starts others, which stay.
    ("import os\ndef keep(t): return os.fork() and t or t", 101),
    (f"import subprocess\nsubprocess.Popen(['setsid', 'sleep', '{SLEEP}'])\ndef keep(t): return t", 101),
    ("import threading, time\nthreading.Thread(target=time.sleep, args=(999,)).start()\ndef keep(t): return t", 101),
    ("from multiprocessing import Pool\nf = str.upper\ndef keep(t):\n with Pool(2) as p: return p.map(f, t)", 101),
    # What it raises, and what it returns.
    ("def keep(t): raise KeyboardInterrupt", f"row 0: {FAILED}KeyboardInterrupt: "),
    (
        "class E(BaseException):\n def __str__(self): exit()\ndef keep(t): raise E",
        f"{FAILED}something that cannot",
    ),
    (
        "class R:\n def __repr__(self): exit()\ndef keep(t): return [R()] * len(t)",
        "something that cannot be shown",
    ),
    (
        "class R:\n def __repr__(self): return 'x' * 10**7\ndef keep(t): return [R()] * len(t)",
        f"{'x' * 200} (R){WANTED}",
    ),
    ("class E:\n def __eq__(self, o): exit()\ndef keep(t): return [E()] * len(t)", WANTED),
    (
        "class L(list):\n def __len__(self): return 101\ndef keep(t): return L([True])",
        "returned 1 answer for 101 text",
    ),
    ("class L(list):\n def __iter__(self): exit()\ndef keep(t): return L(t)", 101),
    ("class L:\n __class__ = list\ndef keep(t): return L()", "for 101 texts. Expected a list"),
    (
        "class S(str):\n def encode(self): exit()\n __str__ = encode\ndef keep(t): return [S(x) for x in t]",
        101,
    ),
    ("import numpy\ndef keep(t): return numpy.array([x > 'text 5' for x in t])", 54),
    ("import numpy\ndef keep(t): return numpy.array([[False, 'r']] * len(t), object)", 0),
    ("import numpy\ndef keep(t): return numpy.ones((len(t), 2), bool)", f"returned [True, True] (list){WANTED}"),
    ("import numpy\ndef keep(t): return numpy.array(True)", "returned array(True) (ndarray) for 101 texts."),
    ("def keep(t): return [0] * len(t)", f"rules.py) returned 0 (int){WANTED}"),
    # It does not depend on the text alone.
    ("def keep(t): return [hash(x) % 50 != 0 for x in t]", AGAIN),
    ("def keep(t): return [' '.join({*x} | {'a', 'b'}) for x in t]", AGAIN),
    ("import random\ndef keep(t): return [random.random() < 0.9 for x in t]", AGAIN),
    ("seen = set()\ndef keep(t): return [not (x[:6] in seen or seen.add(x[:6])) for x in t]", AGAIN),
    ("def keep(t): return [index % 7 > 0 for index, _ in enumerate(t)]", AGAIN),
    ("def keep(t): return [len(t) > 90] * len(t)", AGAIN),
]


@pytest.mark.parametrize(("code", "expected"), FUNCTIONS)
def test_a_function_does_no_more_than_to_answer_or_to_fail(code: str, expected: int | str, tmp_path: Path):
    given = pin(tmp_path, code)
    if isinstance(expected, int):
        assert len(clean(given)) == expected
        return
    with pytest.raises(InputError, match=re.escape(expected.replace("{}", str(tmp_path)))) as told:
        clean(given)
    assert len(str(told.value)) < 600


def test_a_function_that_never_answers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.clean.functions.process.ANSWER_S", 1)
    given = pin(tmp_path, "import time\ndef keep(t):\n while 'text 3' in t: time.sleep(1)\n return t")
    with pytest.raises(InputError, match=r"row 3: .* gave no answer in 1 s"):
        clean(given)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_nothing_that_a_function_started_outlives_a_build(
    rule: Path, whole: Built, tmp_path: Path, workers: str, number: int
):
    pids = tmp_path / "pids"
    begin = "import os, signal, subprocess, time\nsleep = subprocess.Popen(['setsid', 'sleep', '99']).pid\n"
    note = f"print(os.getpid(), os.getppid(), sleep, file=open({str(pids)!r}, 'a'), flush=True)\n"
    note += "os.kill(os.getppid(), signal.SIGSTOP)\n"  # what ends the others is stopped
    (tmp_path / "rules.py").write_text(f"{begin}{note}def keep(t): time.sleep(99)")
    (tmp_path / "b.jsonl").write_text('{"text": "another"}\n')
    sources = [source(name, f"{name}.jsonl") for name in "ab"]
    clean = {"python": [{"function": "rules:keep"}]}
    write_recipe(rule, *sources, tokenizer={"file": f"{whole.out}/tokenizer.json"}, clean=clean)
    build = Started(rule, tmp_path / "set", "--workers", workers, "--allow-code")
    lines = {"1": 2, "2": 6}[workers]  # with two workers, first of the processes that only load it
    wait_until(lambda: pids.exists() and pids.read_text().count("\n") == lines, "the functions")
    build.process.send_signal(number)
    build.wait()
    started = set(map(int, pids.read_text().split())) - {1}
    wait_until(lambda: not any(map(psutil.pid_exists, started)), "the end of what the function started")


@pytest.mark.long
def test_the_bytes_depend_on_no_hash_seed_or_kill(recipe: Path, tmp_path: Path):
    for seed in range(10):
        out, workers = tmp_path / f"set-{seed}", ["--workers", str(1 + seed % 3)]
        environment = os.environ | {"PYTHONHASHSEED": str(seed), "LANG": "C", "WORD": str(seed)}
        if seed % 2:
            build = Started(recipe, out, *workers, "--allow-code")
            wait_until(lambda: attempts(Path(f"{out}.work/encode")) or build.process.poll() is not None, "encoding")  # noqa: B023
            build.process.kill()
            build.wait()
        run_program("build", recipe, "--out", out, *workers, "--allow-code", env=environment, expect=0)
    assert len({json.dumps(digests(tmp_path / f"set-{seed}"), sort_keys=True) for seed in range(10)}) == 1


def test_rows_of_a_program_are_a_source(tmp_path: Path):
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

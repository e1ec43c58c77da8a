"""A small real corpus, its recipe, and the build command run as a person runs it; shared by the build tests."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from shards import open_set
from shards.stores.open import open_writable_store
from tokenmill.__main__ import main

SPECIAL_TOKENS = ["<|endoftext|>", "<|pad|>"]


def real_documents() -> list[str]:
    """Return a few hundred documents of real prose: the language reference, cut into paragraphs."""
    from pydoc_data.topics import topics

    paragraphs = [part for name in sorted(topics) for part in topics[name].split("\n\n") if len(part) > 80]
    return list(dict.fromkeys(paragraphs))


def write_corpus(folder: Path) -> None:
    """Write three sources: prose (parquet), documentation (jsonl) and code (files)."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = real_documents()
    documents[12] = "A page that quotes <|endoftext|> and <|pad|> as text.\n\n<|endoftext|>"
    documents[11] = "Grüße, 世界 \u0000 👩‍👩‍👧 e\u0301 \r\n"
    half = len(documents) // 2
    table = pa.table({"text": documents[:half], "score": [index % 5 for index in range(half)]})
    pq.write_table(table.slice(0, half // 2), folder / "prose-0.parquet", row_group_size=100)
    pq.write_table(table.slice(half // 2), folder / "prose-1.parquet", row_group_size=100)
    # Ten documents are in both sources, one of them twice in the second.
    rest = [*documents[half:], *documents[:10], documents[0]]
    lines = [json.dumps({"body": {"content": text}}, ensure_ascii=index % 2 == 0) for index, text in enumerate(rest)]
    (folder / "docs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    code = folder / "code"
    code.mkdir(exist_ok=True)
    library = Path(json.__file__).parent.parent
    for name in ("ast.py", "bisect.py", "heapq.py", "queue.py", "random.py", "shlex.py", "textwrap.py", "this.py"):
        (code / name).write_bytes((library / name).read_bytes())
    (code / "latin1.py").write_bytes("# é\n".encode("latin-1"))
    (code / "empty.py").write_bytes(b"")


def recipe_text(corpus: Path, **changes: str) -> str:
    """Return the recipe of `write_corpus`'s folder, as it is named; changes replace whole lines by their key."""
    lines = {
        "weights": "60 30 10",
        "tokens": '"max"',
        "when_short": '"shrink"',
        "val_tokens": "4_000",
        "shard_tokens": "10_000",
        "vocab_size": "1000",
    } | changes
    prose, docs, code = lines["weights"].split()
    return f"""
name = "small"
seed = 7

[[sources]]
name = "prose"
paths = ["{corpus}/*.parquet"]
weight = {prose}
keep = {{ score = ">= 1" }}

[[sources]]
name = "docs"
paths = ["{corpus}/docs.jsonl"]
text = "body.content"
weight = {docs}

[[sources]]
name = "code"
paths = ["{corpus}/code/*.py"]
weight = {code}
max_malformed = 0.2

[tokenizer]
vocab_size = {lines["vocab_size"]}
special_tokens = {json.dumps(SPECIAL_TOKENS)}
sample_bytes = "300 KB"

[mix]
tokens = {lines["tokens"]}
when_short = {lines["when_short"]}

[split]
val_tokens = {lines["val_tokens"]}

[shards]
tokens = {lines["shard_tokens"]}
"""


@dataclass(frozen=True)
class Built:
    """A set that is built, with its work folder beside it. Read only where all tests share it."""

    recipe: Path
    out: Path
    result: dict[str, Any]
    """What the build printed as JSON."""

    @cached_property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file."""
        return digests(self.out)

    def copy(self, folder: Path) -> Built:
        """Copy set and work folder, for a test that changes them."""
        for name in ("set", "set.work"):
            shutil.copytree(self.out.with_name(name), folder / name)
        return Built(self.recipe, folder / "set", self.result)


class Done(subprocess.CompletedProcess[str]):
    """How a command ended."""

    @property
    def json(self) -> Any:
        """What it printed with `--json`."""
        return json.loads(self.stdout)


def command(recipe: Path, out: Path | str, *options: str) -> list[str]:
    """Return the command line of a build."""
    return [sys.executable, "-m", "tokenmill", "build", str(recipe), "--out", str(out), *options]


def run_build(recipe: Path, out: Path | str, *options: str, expect: int = 0) -> dict[str, Any]:
    """Run a build to its end and return its JSON result, if it has one, and `stderr`."""
    return _result_of(run_program("build", recipe, "--out", out, *options, "--json", expect=expect))


def build_here(recipe: Path, out: Path | str, *options: str, expect: int = 0) -> dict[str, Any]:
    """Run a build in this process, with one worker, which is quicker than `run_build`; return what that returns."""
    return _result_of(call_here("build", recipe, "--out", out, "--workers", "1", *options, "--json", expect=expect))


def build_once(factory: pytest.TempPathFactory, name: str, write: Callable[[Path], Path]) -> Built:
    """Build the recipe that is written into a folder of this name, once for all processes of pytest-xdist."""
    folder = factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / name
    folder.mkdir(exist_ok=True)
    built = folder / "built.json"
    with FileLock(folder / "lock"):
        if not built.exists():
            recipe = write(folder)
            built.write_text(json.dumps([str(recipe), build_here(recipe, folder / "set")]))
    recipe, result = read_json(built)
    return Built(Path(recipe), folder / "set", result)


def _result_of(done: Done) -> dict[str, Any]:
    result: dict[str, Any] = done.json if done.stdout else {}
    return result | {"stderr": done.stderr}


def _check(done: Done, expect: int | None) -> Done:
    assert expect in (None, done.returncode), done.stderr + done.stdout[-3000:]
    return done


def run_program(
    *arguments: Path | str, cwd: Path | None = None, env: dict[str, str] | None = None, expect: int | None = None
) -> Done:
    """Run the program in a process of its own, to the exit status that is expected, and return how it ended."""
    given = [sys.executable, "-m", "tokenmill", *map(str, arguments)]
    ended = subprocess.run(given, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)
    return _check(Done(given, ended.returncode, ended.stdout, ended.stderr), expect)


def call_here(*arguments: object, cwd: Path | None = None, expect: int | None = None) -> Done:
    """Run the program's command line in this process, as `run_program` does: a process of its own takes a second more.

    What worker processes print is not caught, and messages call the program `tokenmill`.
    """
    stdout, stderr, given = io.StringIO(), io.StringIO(), [str(argument) for argument in arguments]
    if given[0] in ("audit", "report", "trace") and "--workers" not in given:
        given += ["--workers", "1"]  # two take a second to start
    with contextlib.chdir(cwd or Path.cwd()), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            status = main(given)
        except SystemExit as error:  # by argparse
            status = error.code if isinstance(error.code, int) else 1
    return _check(Done(given, status, stdout.getvalue(), stderr.getvalue()), expect)


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    return json.loads(path.read_bytes())


def run_in_terminal(command: list[str], *, columns: int) -> str:
    """Run a command in a terminal; return what it shows there, without colours."""
    shown, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm"}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
        os.close(terminal)
        output = b""
        while True:
            try:
                output += os.read(shown, 1 << 16)
            except OSError:  # the command has ended
                break
        os.close(shown)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode()).replace("\r\n", "\n")
    assert process.returncode == 0, text
    return text


def digests(place: Path | str) -> dict[str, str]:
    """Return the SHA-256 of every file of a set."""
    store = open_writable_store(place)
    names = sorted(file.name for file in store.list())
    return {name: hashlib.sha256(store.read(name)).hexdigest() for name in names}


def hashes_in(out: Path) -> set[str]:
    """Return the content hashes of a set's documents."""
    return {one.hex() for shard in open_set(out).shards for one in shard.documents(["hash"])["hash"].to_pylist()}


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for one example of a property, where pytest puts its own: `tmp_path` is one for all examples."""
    return tempfile.TemporaryDirectory(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60, pause_s: float = 0.02) -> None:
    """Wait until a condition holds; fail if it takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(pause_s)

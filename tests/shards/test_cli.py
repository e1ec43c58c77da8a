"""The commands: exit status, JSON, and output that no document can abuse."""

import errno
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

from shards.errors import lacks_memory, text_of
from shards.stores.hub_client import hub_errors
from shards.terminal.program import run_command
from tests.support.builds import call_here as run
from tests.support.opened import no_more_files


def test_inspect_prints_tables_and_a_document(good_set, plan):
    result = run("inspect", good_set, expect=0)
    for word in ("prose", "75.0000%", "val deviation", "train-00001", "val"):
        assert word in result.stdout
    described = run("inspect", good_set, "--json").json
    assert [shard["name"] for shard in described["shards"]] == ["train-00000", "train-00001", "val-00000"]
    assert described["shards"][0]["compression_ratio"] > 1
    document = plan.documents["train"][1][6]
    for shard in ("train-00001", "1"):
        result = run("inspect", good_set, "--shard", shard, "--document", 6, expect=0)
        head, text = result.stdout.split("\n", 1)
        assert text == document.text.decode() + "\n"
        assert f"source {document.source}, unit {document.unit}, row {document.row}" in head


def test_reader_of_the_output_may_leave(good_set, monkeypatch):
    # Gone before a word is written, so that even one line cannot be.
    for unbuffered, command in (
        ("", "--help"),
        ("1", "--version"),
        ("", f"inspect '{good_set}'"),
        ("1", f"trace '{good_set}' --text a --limit 0 --workers 1"),
    ):
        monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
        result = run_in_shell(f"tokenmill {command} | true; exit ${{PIPESTATUS[0]}}")
        assert (result.returncode, result.stdout) == (141, "")
        # On a busy machine, a line of progress may stand there.
        progress = re.compile(r"trace: \d+%.*")
        assert all(progress.fullmatch(line) for line in result.stderr.splitlines()), result.stderr


def run_in_shell(line, **given):
    line = line.replace("tokenmill", f"'{sys.executable}' -m tokenmill")
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, **given)


@pytest.mark.parametrize(
    ("command", "closed"),
    [
        ("inspect", ">&-"),
        ("inspect", "2>&-"),
        ("validate", ">&- 2>&-"),
        *(
            (command, "<&- >&- 2>&-")
            for command in ("inspect", "trace --text a --workers 2", "audit --workers 2 --out OUT")
        ),
    ],
)
def test_closed_streams_change_nothing(good_set, tmp_path, command, closed):
    name, _, flags = command.replace("OUT", str(tmp_path / "out")).partition(" ")
    whole, gone = (run_in_shell(f"tokenmill {name} '{place}' {flags} {closed}") for place in (good_set, "absent"))
    assert (whole.returncode, gone.returncode) == (0 if name != "audit" else run("audit", good_set).returncode, 2)
    assert bool(whole.stdout) == (">&-" not in closed.split())
    assert "Traceback" not in whole.stderr + gone.stderr
    assert gone.stderr.count("error: ") == ("2>&-" not in closed)


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        *((command, "1") for command in ("inspect SET", "inspect absent --json", "--help")),
        *((command, "") for command in ("inspect SET --json", "inspect --help", "--version")),
    ],
)
def test_a_full_stdout_is_named(good_set, command, unbuffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = run_in_shell(f"tokenmill {command.replace('SET', str(good_set))} > /dev/full")
    if "absent" in command:
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        return
    expected = "error: stdout: [Errno 28] No space left on device. The disk is full."
    assert (done.returncode, done.stderr.startswith(expected), done.stderr.count("\n")) == (1, True, 1), done.stderr


@pytest.mark.parametrize("to", ["2> /dev/full", "2> >(true)"])
def test_a_stderr_that_cannot_be_written_to_stops_nothing(good_set, tmp_path, to):
    line = f"sleep 0.2; tokenmill report '{good_set}' --workers 1 --out '{tmp_path}/out'"
    assert run_in_shell(f"{{ {line}; }} {to}").returncode == 0
    for refused in ("tokenmill inspect absent", "tokenmill"):
        assert run_in_shell(f"{{ sleep 0.2; {refused}; }} {to}").returncode == 2


def test_what_the_process_lacks_is_said_with_the_remedy_and_a_broken_pipe_is_an_error(tmp_path, capsys):
    def work():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    assert run_command(work, as_json=False) == 2
    assert capsys.readouterr().err == "error: [Errno 32] Broken pipe\n"
    with no_more_files():
        assert run_command(lambda: len(Path(tmp_path / "x").read_bytes()), as_json=False) == 2
    said = f"error: [Errno 24] Too many open files: '{tmp_path / 'x'}'. This process has too many files open."
    assert capsys.readouterr().err == f"{said} Raise its limit: ulimit -n 65536.\n"


class PanicError(BaseException):
    """As pyo3 raises it."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 379 failed"),
        OSError("Memory mapping file failed: Cannot allocate memory"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OSError("Couldn't deserialize thrift: std::bad_alloc"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: Error code 12 (Cannot allocate memory)"),
        RuntimeError("can't start new thread"),
        OSError("[CRYPTO] malloc failure (_ssl.c:3098)"),
        zstandard.ZstdError("decompression error: Allocation error : not enough memory"),
        ImportError("torch.so: failed to map segment from shared object"),
        PanicError("no pool: ThreadPoolBuildError { WouldBlock }"),
    ],
)
def test_too_little_memory_is_said_with_the_remedy(error, capsys):
    def work():
        with hub_errors("a set"):  # at the Hub, too, it is no answer of another server
            raise error

    assert run_command(work, as_json=False) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {text_of(error)}. No memory is left")
    assert said.endswith("raise the limit, or use fewer workers.\n")
    assert not lacks_memory(pa.ArrowInvalid(str(error))), "a value that speaks of memory"

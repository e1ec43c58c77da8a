"""A run folder from a stranger: whatever a file of it is, each command that reads it ends, and a refusal names it.

A table of files, faults and commands. Each command runs in this process; an alarm ends one that waits.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer.checkpoint.folders import hash_files

SECONDS = 60
EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
CHECKPOINT = "checkpoints/step-00000040"
MODEL, OPTIMIZER, RNG = (f"{CHECKPOINT}/{name}.safetensors" for name in ("model", "optimizer", "rng"))
STATE, CHECKSUMS = f"{CHECKPOINT}/state.json", f"{CHECKPOINT}/checksums.json"
COMMANDS = {
    "train": "train {recipe} --shards {set} --run {run} --set train.steps=42",
    "fork": "train {recipe} --shards {set} --run {out} --from {run}/" + CHECKPOINT + " --set train.steps=42",
    "sample": "sample {run} --prompt the --max-new-tokens 2",
    "eval": "eval {run} --worst 1",
    "export": "export-model {run} --to hf --out {out}",
    "trace": "trace-step {run} --step 1 --row 0",
    "plot": "plot {run} --out {out}",
    "compare": "compare {run} {other}",
}
LOAD = ("sample", "train", "fork", "eval", "export")
"""Commands that load a checkpoint."""
READERS = {
    "recipe.json": ("trace", "eval", "plot", "compare"),
    "set.json": ("trace", "eval", "export", "plot", "compare"),
    "changes.json": ("compare", "train", "plot"),
    "start.json": ("compare", "plot"),
    "tokenizer.json": ("sample", "eval", "export", "plot", "compare"),
    "metrics.jsonl": ("compare", "train", "trace", "plot"),
    MODEL: LOAD,
    OPTIMIZER: ("train", "fork"),
    RNG: ("train", "fork"),
    STATE: LOAD,
    CHECKSUMS: LOAD,
    "checkpoints": ("sample", "train", "eval", "export"),
    CHECKPOINT: LOAD,
}
"""Which commands read a file; the quick test takes the first."""


Fault = Callable[[Path], None]


def make_pipe(file: Path) -> None:
    shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
    os.mkfifo(file)


def make_folder(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


def link_to(target: str) -> Fault:
    def link(file: Path) -> None:
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)
        file.symlink_to(target)

    return link


def write(content: bytes) -> Fault:
    return lambda file: (shutil.rmtree(file) if file.is_dir() else None, file.write_bytes(content))[0]


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def make_sparse(file: Path) -> None:
    """Make a file of 64 GB that takes no room."""
    shutil.rmtree(file) if file.is_dir() else None
    with file.open("ab") as opened:
        opened.truncate(64 << 30)


def repeat_a_key(file: Path) -> None:
    file.write_text(file.read_text().replace("{", '{"path": 1, "path": 1, ', 1))


def put(values: dict[str, Any], *, drop: tuple[str, ...] = ()) -> Fault:
    """Set dotted keys of a JSON file."""

    def change(file: Path) -> None:
        data = json.loads(file.read_text())
        for key, value in values.items():
            *parents, last = key.split(".")
            place = data
            for part in parents:
                place = place[part]
            place[last] = value
        for key in drop:
            del data[key]
        file.write_text(json.dumps(data))

    return change


def add_line(line: dict[str, Any] | str) -> Fault:
    def add(file: Path) -> None:
        text = line if isinstance(line, str) else json.dumps({"step": 40, **line})
        file.write_text(file.read_text() + text + "\n")

    return add


def put_header(change: Callable[[dict[str, Any], int], Any], *, size: int | None = None) -> Fault:
    """Change a safetensors header; `size` is what its length claims."""

    def write_header(file: Path) -> None:
        content = file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length])
        found = change(header, len(content) - 8 - length)
        text = json.dumps(header if found is None else found).encode()
        text += b" " * (-len(text) % 8)
        file.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + content[8 + length :])

    return write_header


def put_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Fault:
    def save(file: Path) -> None:
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
        change(tensors)
        save_file(tensors, file)

    return save


def of_first(change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    def apply(tensors: dict[str, torch.Tensor]) -> None:
        name = sorted(tensors)[0]
        tensors[name] = change(tensors[name]).contiguous()

    return put_tensors(apply)


def rename_first(tensors: dict[str, torch.Tensor]) -> None:
    name = sorted(tensors)[0]
    tensors["other." + name] = tensors.pop(name)


def entry_of(header: dict[str, Any]) -> dict[str, Any]:
    return next(entry for name, entry in header.items() if name != "__metadata__")


def with_nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(-1)[0] = torch.nan
    return tensor


NODES: dict[str, Fault] = {
    "pipe": make_pipe,
    "folder": make_folder,
    "link to itself": link_to("."),
    "dangling link": link_to("nothing"),
    "endless device": link_to("/dev/zero"),
    "empty": write(b""),
}
TEXTS: dict[str, Fault] = {
    "sparse": make_sparse,
    "truncated": cut,
    "not UTF-8": write(b'{"a": "\xff\xfe"}\n'),
    "deep": write(b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"),
    "a list": write(b"[]\n"),
    "a word": write(b'"text"\n'),
    "null": write(b"null\n"),
    "number of 5000 digits": write(b'{"step": ' + b"9" * 5000 + b"}\n"),
    "a surrogate": write(b'{"path": "\\ud800", "manifest_sha256": "\\ud800"}\n'),
    "a key twice": repeat_a_key,
}
HUGE = 10**30
OF_STATE: dict[str, Fault] = {
    "275 GB": put({"recipe.model.hidden_size": 262_144, "recipe.model.intermediate_size": 1 << 24}),
    "many layers": put({"recipe.model.num_hidden_layers": 10_000}),
    "vocabulary of 275 GB": put({"vocab_size": 1 << 40}),
    "large vocabulary": put({"vocab_size": 1 << 24}),
    "one row more": put({"vocab_size": 321}),
    "small vocabulary": put({"vocab_size": 300}),
    "long context": put({"recipe.model.max_position_embeddings": 1 << 24, "recipe.train.seq_len": 1 << 24}),
    "large batch": put({"recipe.train.micro_batch": 1 << 40, "recipe.train.global_batch": 1 << 40}),
    "huge step": put({"step": HUGE}),
    "negative step": put({"step": -1}),
    "fraction": put({"step": 40.5}),
    "true": put({"step": True}),
    "seconds": put({"seconds": float("nan")}),
    "many seconds": put({"seconds": 1e308}),
    "eos outside": put({"eos_id": 1 << 40}),
    "eos is a letter": put({"eos_id": 5}),
    "bos outside": put({"bos_id": HUGE}),
    "recipe is a list": put({"recipe": []}),
    "no recipe": put({}, drop=("recipe",)),
    "unknown key": put({"extra": 1}),
    "another version": put({"format_version": [1]}),
    "another tokenizer": put({"tokenizer_sha256": "0"}),
    "no digest": put({"tokenizer_sha256": None}),
}
OF_TENSORS: dict[str, Fault] = {
    "short": write(b"\x01\x02\x03"),
    "truncated": cut,
    "no header": write(struct.pack("<Q", 2) + b"{}"),
    "header of no JSON": write(struct.pack("<Q", 8) + b"{{{{{{{{"),
    "long header": put_header(lambda header, size: None, size=1 << 62),
    "longer header": put_header(lambda header, size: None, size=99_000_000),
    "negative length": put_header(lambda header, size: None, size=(1 << 64) - 1),
    "a list as header": put_header(lambda header, size: []),
    "no dtype": put_header(lambda header, size: entry_of(header).pop("dtype")),
    "unknown dtype": put_header(lambda header, size: entry_of(header).update(dtype="F7") or header),
    "other dtype": put_header(lambda header, size: entry_of(header).update(dtype="I32") or header),
    "huge shape": put_header(lambda header, size: entry_of(header).update(shape=[1 << 40, 1 << 40]) or header),
    "negative shape": put_header(lambda header, size: entry_of(header).update(shape=[-1]) or header),
    "end outside": put_header(lambda header, size: entry_of(header).update(data_offsets=[0, size + 8]) or header),
    "offsets swapped": put_header(lambda header, size: entry_of(header).update(data_offsets=[8, 0]) or header),
    "metadata": put_header(lambda header, size: {**header, "__metadata__": 7}),
    "renamed": put_tensors(rename_first),
    "one is missing": put_tensors(lambda tensors: tensors.pop(sorted(tensors)[0])),
    "one too many": put_tensors(lambda tensors: tensors.update(other=torch.zeros(2))),
    "other shape": of_first(lambda tensor: torch.zeros(3, 3, dtype=tensor.dtype)),
    "no numbers": of_first(lambda tensor: torch.zeros(0, dtype=tensor.dtype)),
    "float64": of_first(lambda tensor: tensor.double()),
    "whole numbers": of_first(lambda tensor: tensor.long()),
}
OF_FLOATS: dict[str, Fault] = {
    "a NaN": of_first(with_nan),
    "infinite": of_first(lambda tensor: torch.full_like(tensor, torch.inf)),
}
TOO_LARGE: dict[str, Fault] = {
    "1e38": put_tensors(lambda tensors: [tensor.fill_(1e38) for tensor in tensors.values()]),
}
OF_METRICS: dict[str, Fault] = {
    "NaN as a step": write(b'{"step": NaN, "loss": 1}\n'),
    "infinite step": write(b'{"step": Infinity, "loss": 1}\n'),
    "a fraction of a step": write(b'{"step": 1.5, "loss": 1}\n'),
    "true as a step": write(b'{"step": true, "loss": 1}\n'),
    "negative step": write(b'{"step": -1, "loss": 1}\n'),
    "huge step": add_line({"step": HUGE, "loss": 1.0}),
    "huge numbers": add_line({"loss": 10**400, "tokens": 10**400}),
    "text": add_line({"tokens": "many"}),
    "text as a loss by source": add_line({"val_loss": 1.0, "val_loss_by_source": "x"}),
    "list as a loss by source": add_line({"val_loss": 1.0, "val_loss_by_source": {"a": [1]}}),
    "text as bits": add_line({"val_bits_per_byte": "x"}),
    "scores as a list": add_line({"scores": [1]}),
    "a score as text": add_line({"scores": {"a_bpb": {"value": "x", "stderr": None}}}),
    "notes as a list": add_line({"scores": {"a_bpb": {"value": 1, "stderr": None}}, "score_notes": [1]}),
    "notes as numbers": add_line({"scores": {"a_bpb": {"value": 1, "stderr": None}}, "score_notes": {"a": 1}}),
    "tokens as text": add_line({"val_loss": 1.0, "val_tokens": "x"}),
    "deep line": add_line("[" * 100_000),
    "only steps": write(b'{"step": 1}\n'),
}
ODD_METRICS: dict[str, Fault] = {
    "1e308": add_line({"loss": 1e308, "tokens": 1e308, "seconds": 1e308, "usd": 1e308, "val_loss": 1e308}),
    "NaN": add_line({"loss": float("nan"), "val_loss": float("nan"), "seconds": float("nan")}),
    "half a line": add_line('{"step": 40, "lo'),
    "no line": write(b"\n\n"),
    "formula": add_line({"val_loss": 1, "val_loss_by_source": {"$x^{": 1.0, "_hidden": 1.0, "\x1b[31m": 1.0}}),
}
OF_RECIPE: dict[str, Fault] = {
    "formula as a name": put({"name": "$x^{ \x1b[31m \u202e"}),
    "empty": put({}, drop=("model",)),
    "text as a size": put({"model.hidden_size": "64"}),
    "huge size": put({"train.global_batch": HUGE, "train.micro_batch": HUGE}),
}
OF_SET: dict[str, Fault] = {
    "number": put({"path": 1}),
    "null byte": put({"path": "/a\0b"}),
    "empty path": put({"path": ""}),
    "unknown scheme": put({"path": "gopher://x"}),
    "long path": put({"path": "/x" * 5000}),
    "device": put({"path": "/dev/zero"}),
    "unknown key": put({"other": 1}),
}
OF_CHANGES: dict[str, Fault] = {
    "no list": write(b'{"changes": 7}'),
    "three values": write(b'{"changes": [{"after_step": 3, "keys": {"optimizer.lr": [1, 2, 3]}}]}'),
    "huge step": write(b'{"changes": [{"after_step": 1%s, "keys": {"optimizer.lr": [1, 2]}}]}' % (b"0" * 30)),
    "unknown keys": write(
        b'{"changes": [{"after_step": 3, "keys": {"$x^{": [{}, [[{}]]], "": [null, "\\u001b[31m"]}}]}'
    ),
    "one list in another": write(b'{"changes": [[]]}'),
}
OF_TOKENIZER: dict[str, Fault] = {
    "no model": write(b"{}"),
    "other model": write(b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'),
    "negative id": write(b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'),
    "large ids": write(b'{"model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}}'),
}
FAULTS: dict[str, dict[str, Fault]] = {
    "recipe.json": TEXTS | OF_RECIPE,
    "set.json": TEXTS | OF_SET,
    "changes.json": TEXTS | OF_CHANGES,
    "start.json": TEXTS | {"number": write(b'{"checkpoint": 1}')},
    "tokenizer.json": TEXTS | OF_TOKENIZER,
    "metrics.jsonl": TEXTS | OF_METRICS | ODD_METRICS,
    MODEL: OF_TENSORS | OF_FLOATS | TOO_LARGE,
    OPTIMIZER: OF_TENSORS | OF_FLOATS,
    RNG: OF_TENSORS | {"zeros": of_first(torch.zeros_like), "ones": of_first(lambda tensor: tensor.fill_(255))},
    STATE: {**TEXTS, "sparse": cut} | OF_STATE,
    CHECKSUMS: TEXTS | {"numbers": write(b'{"model.safetensors": 7}')},
    "checkpoints": {},
    CHECKPOINT: {},
}
HARMLESS = {
    *("long context", "large batch", "eos is a letter", "one row more", "1e38"),  # for `sample`
    *("zeros", "ones"),  # perhaps the state of a generator
    *("half a line", "no line", "NaN", "formula", "only steps", "formula as a name", "unknown keys"),
    *("1e308", "truncated", "not UTF-8", "number of 5000 digits", "deep", "a list", "a word", "null"),
}
"""Faults that some files may have: of others the tests say that they are refused."""
STRICT = (MODEL, OPTIMIZER, RNG, STATE, CHECKSUMS)
"""Files whose every fault is refused, but for the harmless ones that only they can have."""


@pytest.fixture(scope="module")
def stranger(run: Path, tmp_path_factory) -> Path:
    """A run with one checkpoint and every file that a run may have. Read only."""
    folder = tmp_path_factory.mktemp("strangers") / "run"
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "checkpoints/step-00000020")
    (folder / "changes.json").write_text('{"changes": [{"after_step": 3, "keys": {"optimizer.lr": [1, 2]}}]}')
    (folder / "start.json").write_text('{"checkpoint": "/x"}')
    return folder


@pytest.fixture(autouse=True)
def _nobody_waits() -> Iterator[None]:
    """End a command that waits or works for too long."""

    def end(*_: object) -> None:
        raise TimeoutError(f"a command took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, end)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def spoil(run: Path, file: str, fault: Fault) -> None:
    """Give a file of a run a fault; checksums are those of a stranger, and fit."""
    path = run / file
    if path.is_dir():
        shutil.rmtree(path)
    fault(path)
    checkpoint = run / CHECKPOINT
    if checkpoint.is_dir() and file != CHECKSUMS and all(entry.is_file() for entry in checkpoint.iterdir()):
        (run / CHECKSUMS).write_text(json.dumps(hash_files(checkpoint)))


def list_faults(file: str) -> dict[str, Fault]:
    nodes = {name: fault for name, fault in NODES.items() if FAULTS[file] or name != "folder"}
    return nodes | FAULTS[file]


def find_fault(
    trainer: Any, command: str, run: Path, tmp_path: Path, places: dict[str, Any], file: str, name: str
) -> str:
    """Run a command on a spoilt run, and return what is wrong with how it ends; nothing if it ends well."""
    words = COMMANDS[command].format(run=run, out=tmp_path / "out", **places).split()
    signal.alarm(SECONDS)
    try:
        done = trainer.run(*words)
    except Exception as error:  # noqa: BLE001  any of them would be a traceback
        return f"{type(error).__name__}: {error!s:.200}"
    finally:
        signal.alarm(0)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    if done.returncode not in (0, 1, 2):
        return f"status {done.returncode}"
    if done.returncode == 0 and name not in HARMLESS and file in STRICT:
        return "is taken"
    told = done.stderr.partition("error: ")[2]
    if done.returncode and (not told or not any(place in told for place in (str(run), "gopher"))):
        return f"does not name the run: {done.stderr[-300:]}"
    if "pydantic" in done.stderr or "Traceback" in done.stderr:
        return f"says {done.stderr[-300:]}"
    return ""


def find_faults(
    trainer: Any,
    shard_set: Any,
    recipe_file: Path,
    stranger: Path,
    tmp_path: Path,
    file: str,
    commands: tuple[str, ...],
) -> list[str]:
    """Try every fault of a file with some commands; return what ended badly."""
    found: list[str] = []
    places = {"set": shard_set.path, "recipe": recipe_file, "other": stranger}
    for name, fault in list_faults(file).items():
        for command in commands:
            run = tmp_path / "run"
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(stranger, run)
            spoil(run, file, fault)
            if bad := find_fault(trainer, command, run, tmp_path, places, file, name):
                found.append(f"{name}, {command}: {bad}")
    return found


@pytest.mark.parametrize("file", FAULTS)
def test_a_hostile_file_of_a_run_is_refused_by_name(trainer, shard_set, recipe_file, stranger, tmp_path, file):
    commands = READERS[file] if EXHAUSTIVE else READERS[file][:1]
    assert find_faults(trainer, shard_set, recipe_file, stranger, tmp_path, file, commands) == []

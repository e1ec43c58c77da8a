"""A run folder from a stranger: whatever a file of it is, each command that reads it ends, and a refusal names it.

A table of files, faults and commands. Each command runs in this process; the timeout ends one that waits.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer.checkpoint.folders import hash_files

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
    "trace": "trace-step {run} --step 1",
    "plot": "plot {run} --out {out}",
    "compare": "compare {run} {other}",
}
LOAD = ("sample", "train", "fork", "eval", "export")
"""Commands that load a checkpoint."""
READERS = {
    "recipe.json": ("trace", "eval", "plot", "compare"),
    "run.json": ("trace", "eval", "export", "plot", "compare"),
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
"""Which commands read a file; the quick test takes the first, of a state the first two."""


Fault = Callable[[Path], object]
"""Damages a file, or makes something in its place where a folder was."""


def in_place(make: Fault) -> Fault:
    return lambda file: (file.unlink(missing_ok=True), make(file))


def link_to(target: str) -> Fault:
    return in_place(lambda file: file.symlink_to(target))


def write(content: bytes) -> Fault:
    return lambda file: file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def make_sparse(file: Path) -> None:
    """Make a file of 64 GB that takes no room."""
    os.truncate(file, 64 << 30)


def repeat_a_key(file: Path) -> None:
    file.write_text(file.read_text().replace("{", '{"path": 1, "path": 1, ', 1))


def put(**values: Any) -> Fault:
    """Set keys of a JSON file, those of tables within it too."""

    def change(file: Path) -> None:
        file.write_text(json.dumps(merge(json.loads(file.read_text()), values)))

    def merge(old: Any, new: Any) -> Any:
        if not (isinstance(old, dict) and isinstance(new, dict)):
            return new
        return old | {key: merge(old.get(key), value) for key, value in new.items()}

    return change


def add_line(line: str = "", **values: Any) -> Fault:
    def add(file: Path) -> None:
        file.write_text(file.read_text() + (line or json.dumps({"step": 40, **values})) + "\n")

    return add


def claim_length(size: int) -> Fault:
    """Claim a length of a safetensors header."""
    return lambda file: file.write_bytes(struct.pack("<Q", size) + file.read_bytes()[8:])


def put_header(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Fault:
    """Change a safetensors header, or its first entry."""

    def write_header(file: Path) -> None:
        content = file.read_bytes()
        end = 8 + struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:end])
        changed = change(header, next(entry for name, entry in header.items() if name != "__metadata__"))
        text = json.dumps(header if changed is None else changed).encode()
        text += b" " * (-len(text) % 8)
        file.write_bytes(struct.pack("<Q", len(text)) + text + content[end:])

    return write_header


def put_entry(**values: Any) -> Fault:
    return put_header(lambda _, entry: entry.update(values))


def put_tensors(change: Callable[[dict[str, torch.Tensor], str], Any]) -> Fault:
    """Change the tensors of a file; the name is that of the first."""

    def save(file: Path) -> None:
        tensors = load_file(file)
        change(tensors, min(tensors))
        save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, file)

    return save


def of_first(change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    return put_tensors(lambda tensors, first: tensors.update({first: change(tensors[first])}))


NODES: dict[str, Fault] = {
    "pipe": in_place(os.mkfifo),
    "folder": in_place(Path.mkdir),
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
    "no keys": write(b"{}"),
    "number of 5000 digits": write(b'{"step": ' + b"9" * 5000 + b"}\n"),
    "a surrogate": write(b'{"path": "\\ud800", "manifest_sha256": "\\ud800"}\n'),
    "a key twice": repeat_a_key,
}
HUGE = 10**30
OF_STATE: dict[str, Fault] = {
    "275 GB": put(recipe={"model": {"hidden_size": 262_144, "intermediate_size": 1 << 24}}),
    "many layers": put(recipe={"model": {"num_hidden_layers": 10_000}}),
    "vocabulary of 275 GB": put(vocab_size=1 << 40),
    "large vocabulary": put(vocab_size=1 << 24),
    "one row more": put(vocab_size=321),
    "small vocabulary": put(vocab_size=300),
    "long context": put(recipe={"model": {"max_position_embeddings": 1 << 24}, "train": {"seq_len": 1 << 24}}),
    "large batch": put(recipe={"train": {"micro_batch": 1 << 40, "global_batch": 1 << 40}}),
    "huge step": put(step=HUGE),
    "negative step": put(step=-1),
    "seconds": put(seconds=float("nan")),
    "eos outside": put(eos_id=1 << 40),
    "eos is a letter": put(eos_id=5),
    "bos outside": put(bos_id=HUGE),
    "recipe is a list": put(recipe=[]),
    "unknown key": put(extra=1),
    "another version": put(format_version=[1]),
    "another tokenizer": put(tokenizer_sha256="0"),
    "no digest": put(tokenizer_sha256=None),
}
OF_TENSORS: dict[str, Fault] = {
    "short": write(b"\x01\x02\x03"),
    "truncated": cut,
    "no header": write(struct.pack("<Q", 2) + b"{}"),
    "header of no JSON": write(struct.pack("<Q", 8) + b"{{{{{{{{"),
    "long header": claim_length(1 << 62),
    "negative length": claim_length((1 << 64) - 1),
    "a list as header": put_header(lambda header, entry: []),
    "empty entry": put_header(lambda header, entry: entry.clear()),
    "unknown dtype": put_entry(dtype="F7"),
    "other dtype": put_entry(dtype="I32"),
    "huge shape": put_entry(shape=[1 << 40, 1 << 40]),
    "negative shape": put_entry(shape=[-1]),
    "end outside": put_entry(data_offsets=[0, 1 << 30]),
    "metadata": put_header(lambda header, entry: header.update(__metadata__=7)),
    "renamed": put_tensors(lambda tensors, first: tensors.update(other=tensors.pop(first))),
    "one is missing": put_tensors(lambda tensors, first: tensors.pop(first)),
    "one too many": put_tensors(lambda tensors, first: tensors.update(other=torch.zeros(2))),
    "other shape": of_first(lambda tensor: torch.zeros(3, 3, dtype=tensor.dtype)),
    "no numbers": of_first(lambda tensor: torch.zeros(0, dtype=tensor.dtype)),
    "float64": of_first(lambda tensor: tensor.double()),
    "whole numbers": of_first(lambda tensor: tensor.long()),
}
OF_FLOATS: dict[str, Fault] = {
    "a NaN": of_first(lambda tensor: tensor.index_fill(0, torch.tensor(0), torch.nan)),
    "infinite": of_first(lambda tensor: torch.full_like(tensor, torch.inf)),
}
TOO_LARGE = {"1e38": put_tensors(lambda tensors, first: [tensor.fill_(1e38) for tensor in tensors.values()])}
OF_METRICS: dict[str, Fault] = {
    "NaN as a step": write(b'{"step": NaN, "loss": 1}\n'),
    "negative step": write(b'{"step": -1, "loss": 1}\n'),
    "huge step": add_line(step=HUGE, loss=1.0),
    "huge numbers": add_line(loss=10**400, tokens=10**400),
    "text": add_line(tokens="many"),
    "text as a loss by source": add_line(val_loss=1.0, val_loss_by_source="x"),
    "list as a loss by source": add_line(val_loss=1.0, val_loss_by_source={"a": [1]}),
    "scores as a list": add_line(scores=[1]),
    "no scores": add_line(scores=None),
    "a score as text": add_line(scores={"a_bpb": {"value": "x", "stderr": None}}),
    "notes as a list": add_line(scores={"a_bpb": {"value": 1, "stderr": None}}, score_notes=[1]),
    "deep line": add_line("[" * 100_000),
    "only steps": write(b'{"step": 1}\n'),
}
ODD_METRICS: dict[str, Fault] = {
    "1e308": add_line(loss=1e308, tokens=1e308, seconds=1e308, usd=1e308, val_loss=1e308),
    "NaN": add_line(loss=float("nan"), val_loss=float("nan"), seconds=float("nan")),
    "half a line": add_line('{"step": 40, "lo'),
    "no line": write(b"\n\n"),
    "formula": add_line(val_loss=1, val_loss_by_source={"$x^{": 1.0, "_hidden": 1.0, "\x1b[31m": 1.0}),
}
OF_RECIPE: dict[str, Fault] = {
    "formula as a name": put(name="$x^{ \x1b[31m \u202e"),
    "text as a size": put(model={"hidden_size": "64"}),
    "huge size": put(train={"global_batch": HUGE, "micro_batch": HUGE}),
}
OF_SET: dict[str, Fault] = {
    "number": put(path=1),
    "null byte": put(path="/a\0b"),
    "empty path": put(path=""),
    "unknown scheme": put(path="gopher://x"),
    "long path": put(path="/x" * 5000),
    "device": put(path="/dev/zero"),
    "unknown key": put(other=1),
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
    "other model": write(b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}'),
    "negative id": write(b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'),
    "large ids": write(b'{"model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}}'),
}
FAULTS: dict[str, dict[str, Fault]] = {
    "recipe.json": TEXTS | OF_RECIPE,
    "run.json": TEXTS | OF_SET,
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
    *("long context", "large batch", "1e38"),  # for `sample`
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


def list_cases() -> Iterator[Any]:
    for file, faults in FAULTS.items():
        nodes = {name: fault for name, fault in NODES.items() if faults or name != "folder"}
        for name, fault in (nodes | faults).items():
            for command in READERS[file] if EXHAUSTIVE else READERS[file][: 2 if file == STATE else 1]:
                yield pytest.param(file, name, fault, command, id=f"{Path(file).name}, {name}, {command}")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("file", "name", "fault", "command"), list(list_cases()))
def test_a_hostile_file_of_a_run_is_refused_by_name(
    trainer, shard_set, recipe_file, stranger, tmp_path, file, name, fault, command
):
    run = shutil.copytree(stranger, tmp_path / "run")
    if (path := run / file).is_dir():
        shutil.rmtree(path)
    fault(path)
    checkpoint = run / CHECKPOINT
    if checkpoint.is_dir() and file != CHECKSUMS and all(entry.is_file() for entry in checkpoint.iterdir()):
        (run / CHECKSUMS).write_text(json.dumps(hash_files(checkpoint)))  # those of a stranger fit
    places = {"set": shard_set.path, "recipe": recipe_file, "other": stranger, "out": tmp_path / "out"}
    done = trainer.run(*COMMANDS[command].format(run=run, **places).split())
    assert "pydantic" not in done.stderr
    if name not in HARMLESS and file in STRICT:
        assert done.returncode, "it is taken"
    if done.returncode:
        assert done.returncode in (1, 2)
        told = done.stderr.partition("error: ")[2]
        assert str(run) in told or "gopher" in told, done.stderr

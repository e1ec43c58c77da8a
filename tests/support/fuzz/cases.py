"""What a case is made of: by kind, a function that writes files into a folder and returns a command line.

`write_material` writes what all cases share and none may change: recipes with their text, a set, a run.
"""

# pyright: basic
import contextlib
import json
import os
import random
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.recipe.schema import Recipe
from tests.support.ablations import TRAIN, write_search
from tests.support.builds import call_here
from tests.support.file_bytes import COMPRESS, to_csv, to_ipc, to_parquet
from tests.support.fuzz.damage import (
    JSON_VALUES,
    damage_bytes,
    damage_file,
    damage_json,
    damage_parquet,
    replace_file,
    reseal,
)
from tests.support.recipes import overrides, source, to_lines, to_toml, write_recipe
from tests.support.wrong_values import ARGUMENTS, VALUES, list_keys, list_parsers, put
from tokenmill.experiments.schema import AblationConfig
from tokenmill.mix_search.schema import MixSearchConfig
from trainer.recipe import TrainRecipe

BUILD = "--workers 1 --give-up-after 1 --timeout 1"
READERS = [
    "validate {set}",
    "validate {set} --level quick",
    "inspect {set}",
    "inspect {set} --shard train-00001",
    "inspect {set} --shard train-00000 --document 2",
    "audit {set} --workers 1 --out audit",
    "trace {set} --token 300 --workers 1",
    "trace {set} --text the --workers 1 --out block.list",
    "trace {set} --regex r.v --workers 1",
    "trace {set} --document {m}/held-out.jsonl",
    "report {set} --workers 1 --out report",
    "push {set} owner/name --dry-run",
    "train {m}/train.toml --shards {set} --run run",
    "train {m}/train.toml --shards {set} --run run --cache cache",
    "eval {m}/run --shards {set} --worst 2",
    "trace-step {m}/run --step 1 --shards {set}",
    *(
        f"export {{set}} --to {layout} --out export"
        for layout in ("nanogpt", "llmc", "megatron", "datatrove", "parquet")
    ),
]
OF_RUNS = [
    "train {m}/train.toml --shards {m}/set --run {run} --set train.steps=5",
    "train {m}/train.toml --shards {m}/set --run {run}",
    "train {m}/train.toml --shards {m}/set --run run --from {run}",
    "plot {run} --out picture",
    "compare {run} {m}/run --out page.html",
    "eval {run} --worst 2",
    "sample {run} --prompt the --max-new-tokens 3",
    "trace-step {run} --step 1",
    "export-model {run} --to hf --out hf",
]
OTHERS = [
    f"plan {{m}}/data.toml {BUILD}",
    f"build {{m}}/data.toml --out set {BUILD}",
    "build {m}/data.toml --out set --dry-run",
    "clean-report {m}/set",
    "keys train",
    "init {m} --out recipe.toml",
    "pull owner/name --out set --give-up-after 1",
    "ablate {m}/ablation.toml --out x --dry-run --workers 1",
    "mix-search {m}/search.toml --out x --dry-run --workers 1",
]
FLAG_VALUES = [
    *ARGUMENTS, "0", "1", "2", "7", "1e9", "9" * 30, "1_000", "\u0663", "0x10", "1e-300", "-0", "inf", ".", "..", "/",
    "//", "~", "missing/x", "{m}/set", "{m}/run", "{m}/data.toml", "{m}/set/manifest.json", "{m}/set/tokenizer.json",
    "pipe", "loop", "full", "y" * 5000, "a\nb", "\x1b[31mred", "\u202e", "train-00000", "(", "[a", "a{1000}{1000}",
    "(a*)*b", "s3://b/x", "hf://x", "gs://", "http://127.0.0.1:9/x", "file:///x", "train.steps=1",
    "model.hidden_size=-4", "name=", "sources.#0.weight=9", "sources.stories.paths=[]", "a.b.c.d=[[", "x={",
    "tokenizer.vocab_size=1e99", "{m}/held-out.jsonl", "@", "-", "--",
]  # fmt: skip
UNSAFE = {"--engine", "--ray-address"}
"""Flags that start a cluster."""


def write_material(folder: Path) -> None:
    """Write recipes, text, a set and a run."""
    write_search(folder)
    (folder / "ablation.toml").write_text(
        'name = "a"\ndata = "data.toml"\ntrain = "train.toml"\n'
        'arms = [{ name = "x" }, { name = "y", data = { seed = 3 } }]\n'
    )
    scored = TRAIN["eval"] | {"sets": [{"name": "held_out", "paths": [str(folder / "held-out.jsonl")]}]}
    train = TRAIN | {"train": TRAIN["train"] | {"steps": 4}, "checkpoint": {"every_steps": 2}, "eval": scored}
    (folder / "train.toml").write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in train.items()))
    # The measures are compiled here, once on a machine.
    limits = ("gopher.min_words=3", "c4.min_sentences=1", "fineweb.max_short_lines=1", "code.max_encoded=1")
    call_here("plan", folder / "data.toml", *BUILD.split(), *overrides(*(f"clean.{one}" for one in limits)))
    for words in (
        f"build {folder}/data.toml --out {folder}/set {BUILD}",
        f"train {folder}/train.toml --shards {folder}/set --run {folder}/run",
    ):
        call_here(*words.split(), expect=0)


def draw_flags(chance: random.Random, material: Path, folder: Path) -> list[str]:
    """Return a command that works, with one to three flags of hostile values."""
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "full").mkdir()
    (folder / "full/of.txt").write_text("things")
    chosen = chance.choice([*READERS, *OF_RUNS, *OTHERS])
    for name in ("set", "set.work", "run"):
        copy(material / name, folder / name)
    for path in material.glob("*.*l"):
        os.link(path, folder / path.name)
    words = chosen.format(m=folder, set=folder / "set", run=folder / "run").split()
    parser = dict(list_parsers())[words[0]]
    actions = [action for action in parser._actions if not UNSAFE & {*action.option_strings}]
    for _ in range(chance.choice([1, 1, 2, 3])):
        action = chance.choice(actions)
        value = chance.choice([*FLAG_VALUES, *map(str, action.choices or ())]).replace("{m}", str(folder))
        if action.option_strings:
            flag = action.option_strings[-1]
            flag = chance.choice([flag, flag, flag, flag[:-1]])
            words += [flag] if action.nargs == 0 else [f"{flag}={value}"] if chance.random() < 0.5 else [flag, value]
        elif chance.random() < 0.5:
            words[1] = value
        else:
            words.append(value)
    return words + ["--json"] * (chance.random() < 0.15)


RECIPES: dict[str, tuple[Any, str, list[str]]] = {
    "data": (
        Recipe,
        "data.toml",
        [f"plan {{recipe}} {BUILD}", f"build {{recipe}} --out set {BUILD}", "build {recipe} --out set --dry-run"],
    ),
    "train": (
        TrainRecipe,
        "train.toml",
        ["fit {recipe} --gpu-memory 8GB", "train {recipe} --shards {m}/set --run run"],
    ),
    "ablation": (AblationConfig, "ablation.toml", ["ablate {recipe} --out x --dry-run --workers 1"]),
    "search": (MixSearchConfig, "search.toml", ["mix-search {recipe} --out x --dry-run --workers 1"]),
}
"""By kind: the model of the recipe, its file, and the commands that read it."""
KEY_VALUES: list[Any] = [
    *VALUES, *JSON_VALUES, 1, 2, 5, 64, 300, 1000, 10**6, 10**9, 10**12, 0.01, 0.999, 1e-9, 1e308, "max", "1K", "1e9",
    "5 TB", "off", "on", "all", "drop", "mask", "keep", "report", "mix", "encode", "repeat", "shrink", "merge",
    "qwen2", "o200k", "jsonl", "csv", "parquet", "text", "file", "hub", "software-heritage", "latin-1", "utf-16",
    "idna", "hex", "bf16", "fp16", "cuda", "cuda:7", "mps", "muon", "wsd", "gpt2", "llama", "qwen3", "stories.jsonl",
    "*.jsonl", "**/*", "set/tokenizer.json", "pipe", "loop", "set", "s3://b/x", "http://127.0.0.1:9/x", "hf://o/x",
    "~x/y", "(", "(?i)the", "a{1000}{1000}", ["the "], ["("], ["stories.jsonl"], ["missing*"], ["set"], ["loop"],
    ["http://127.0.0.1:9/x.jsonl"], ["s3://b/*"], {"stories": 1}, {"stories": 0}, {"stories": -1}, {"text": "> 3"},
    {"text": "= x"}, {"text": "((("}, {"x.y": "!= 1"}, {"text": ">= 2020-99-99"},
    [{"name": "a", "share": 0.5}, {"name": "b", "share": 0.5}], [0.5, 0.5], [0.9, 0.95], [[0]], [1, 1], [0.0, 1.0],
    ["<|endoftext|>"] * 2, [""], ["\ud800"], ["<s>", " ", "a"],
]  # fmt: skip
LINES = [
    "[[sources]]", "[sources]", "[tokenizer]", "x = 1", "= 1", '"" = 1', "name = 'a'", 'name = "b"', "a.b.c = 1",
    "[a.b]\nc=1\n[a]\nb=2", "x = 1979-05-27T07:32:00Z", "x = " + "[" * 5000, "a" + ".a" * 5000 + " = 1",
    "x = " + "9" * 5000, "\ufeff", "\0", "x = '''", "[[[", "# \x07", "x = 0x" + "f" * 3000, "x = {a = 1, a = 2}", "\r",
]  # fmt: skip


def draw_keys(chance: random.Random, material: Path, folder: Path) -> list[str]:
    """Write a recipe that works, but for keys of hostile values or hostile text; return a command that reads it."""
    for path in material.glob("*.*l"):
        os.link(path, folder / path.name)
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    (folder / "set").symlink_to(material / "set")
    model, name, commands = RECIPES[chance.choices([*RECIPES], [6, 4, 1, 1])[0]]
    tables = tomllib.loads((folder / name).read_text())
    places = [*list_keys(model), *(("sources", 0, key) for key in ("paths", "exclude", "repo")), ("unknown",)]
    places = [place for place in places if model is Recipe or place[:1] != ("sources",)]
    settings: list[str] = []
    touched = set()
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        top = chance.choice(sorted({place[0] for place in places}))
        place = chance.choice([place for place in places if place[0] == top])
        value = chance.choice(KEY_VALUES)
        touched.add(place)
        if chance.random() < 0.25:
            settings += ["--set", f"{'.'.join(map(str, place))}={to_toml(value)}".replace("\0", "")]
        else:
            with contextlib.suppress(TypeError, KeyError, IndexError, AttributeError):  # an earlier value is no table
                tables = put(tables, place, value)
    text = "".join(f"{to_toml(key)} = {to_toml(value)}\n" for key, value in tables.items())
    how = chance.random()
    if how < 0.1:
        lines = text.splitlines()
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(LINES))
        text = "\n".join(lines)
    data = text.encode(errors="surrogatepass")
    (folder / name).unlink()
    (folder / name).write_bytes(damage_bytes(chance, data) if how > 0.95 else data)
    words = chance.choice(commands).format(recipe=folder / name, m=material).split()
    if words[0] in ("plan", "build", "fit", "train"):
        words += settings
    # What a recipe may ask for, and nobody waits for.
    return words + ["--set", "train.steps=2"] * (words[0] == "train" and ("train", "steps") not in touched)


ROWS = [
    {
        "text": f'The mill {number} turns: grüße, 世界 "so" it is, and {"word " * number}',
        "score": number / 4,
        "meta": {"url": f"u{number}"},
    }
    for number in range(40)
]


JSON_LINES = to_lines(ROWS).encode()
TABLE = pa.Table.from_pylist(ROWS)
FILES: dict[str, bytes] = {
    "x.jsonl": JSON_LINES,
    "x.json": json.dumps(ROWS).encode(),
    "x.csv": to_csv(TABLE.select(["text", "score"]).to_pylist()),
    "x.parquet": to_parquet(TABLE),
    "x.arrow": to_ipc(TABLE, pa.ipc.new_stream),
    "x.feather": to_ipc(TABLE),
    "x.txt": "\n--\n".join(str(row["text"]) for row in ROWS).encode(),
    "x.py": str(ROWS[5]["text"]).encode(),
    "x": JSON_LINES,
}
BAD_LINES = [
    b"{", b"[]", b"null", b"{}", b'{"text": null}', b'{"text": 1}', b'{"text": "\\ud800"}',
    b'{"text": "a", "text": "b"}', b'{"text": "a", "meta": 5}', b'{"text": ["a"]}', b'{"text": {"a": 1}}',
    b'{"text": "a", "score": ' + b"9" * 400 + b"}", b'{"text": "a", "score": 1e999}', b'{"x": ' + b"[" * 3000,
    b'{"text": "a", "x": ' + b'{"a":' * 3000 + b"1" + b"}" * 3001, b'"', b"a,b,c,d", b'"a', b"\xff\xfe", b"\0", b"",
    b" " * 70_000, b'{"text": "' + b"x" * 300_000 + b'"}', b'{"text": "a", "score": NaN}', b"\xef\xbb\xbf{}",
    b'{"text": "\\u0000"}', b"\r", b'{"' + b"k" * 70_000 + b'": 1}', b"<|endoftext|>",
]  # fmt: skip
SOURCE_KEYS: list[dict[str, Any]] = [
    {}, {}, {}, {"max_malformed": 1.0}, {"max_malformed": 1.0, "max_null": 1.0}, {"keep": {"score": ">= 1"}},
    {"keep": {"meta.url": "!= x"}}, {"text": "meta.url"}, {"text": "meta"}, {"format": "jsonl"}, {"format": "csv"},
    {"format": "json"}, {"format": "parquet"}, {"format": "arrow"}, {"format": "text", "separator": "\n--\n"},
    {"format": "file"}, {"encoding": "utf-16"}, {"encoding": "latin-1"},
    {"clean": {"gopher": {"min_words": 3, "max_dropped": 1.0}}}, {"clean": {"personal_data": {}}}, {"take": 0.5},
    {"drop_if_matches": ["The (mill|x)"], "max_dropped": 1.0},
]  # fmt: skip


def damage_source(chance: random.Random, name: str, data: bytes) -> bytes:
    """Damage the content of a source file."""
    if name.endswith(".parquet") and chance.random() < 0.5:
        return damage_parquet(chance, data)
    if not name.endswith((".parquet", ".arrow", ".feather")) and chance.random() < 0.5:
        lines = data.split(b"\n")
        lines.insert(chance.randrange(len(lines) + 1), chance.choice(BAD_LINES))
        return b"\n".join(lines)
    return damage_bytes(chance, data)


def draw_sources(chance: random.Random, material: Path, folder: Path) -> list[str]:
    """Write a damaged source file, or another file that a recipe names; return a command that reads it."""
    role = chance.choice(["source"] * 8 + ["tokenizer", "list", "evaluation", "task"])
    name = chance.choice([*FILES])
    content = FILES[name]
    if role == "tokenizer":
        name, content = "tokenizer.json", (material / "set/tokenizer.json").read_bytes()
    elif role == "list":
        name, content = "x.txt", b"".join(b"%032x\n" % number for number in range(9))
    elif role == "task":
        rows = [{"question": "the mill", "choices": ["turns", "is"], "answer": number % 2} for number in range(6)]
        name, content = "x.jsonl", to_lines(rows).encode()
    packed = chance.choice(["", *COMPRESS] if role == "source" else [""])
    path = folder / (name + (chance.choice([packed] * 5 + ["", *COMPRESS]) if role == "source" else ""))
    how = chance.random()
    if how < 0.7:
        content = (
            damage_json(chance, content) if role == "tokenizer" and how < 0.5 else damage_source(chance, name, content)
        )
    content = COMPRESS[packed](content) if packed else content
    path.write_bytes(damage_bytes(chance, content) if 0.6 < how < 0.9 and packed else content)
    if how >= 0.9:
        replace_file(chance, path)
    if role == "task":
        (folder / "recipe.toml").write_text(f'[[eval.tasks]]\nname = "e"\nfiles = ["{path}"]\n')
        return ["eval", str(material / "run"), "--recipe", str(folder / "recipe.toml")]
    tables: dict[str, Any] = {"shards": {"tokens": 3000}, "mix": {"when_short": chance.choice(["shrink", "error"])}}
    tables["tokenizer"] = {"file": str(path if role == "tokenizer" else material / "set/tokenizer.json")}
    if role == "source" and chance.random() < 0.2:
        tables["tokenizer"] = {"vocab_size": 300}
    if role == "list":
        tables["drop_hashes"] = [str(path)]
    if role == "evaluation":
        tables["evaluations"] = [{"name": "e", "paths": [str(path)]}]
    if role == "source" and chance.random() < 0.1:
        tables["clean"] = {"near_duplicates": {"action": "drop"}}
    keys = chance.choice(SOURCE_KEYS)
    if ".txt" in path.name:
        keys = {"separator": "\n--\n"} | keys
    first = source(
        "x",
        *([folder / "x*"] if role == "source" else [material / "stories.jsonl"]),
        **(keys if role == "source" else {}),
    )
    recipe = write_recipe(folder / "recipe.toml", first, source("stories", material / "stories.jsonl"), **tables)
    return [*chance.choice(["plan", "build", "build", "build"]).split(), str(recipe), *("--out set " + BUILD).split()]


def copy(place: Path, to: Path) -> Path:
    return Path(shutil.copytree(place, to, symlinks=True))


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith((".png", ".svg")))


def draw_sets(chance: random.Random, material: Path, folder: Path) -> list[str]:
    """Damage files of a set, and seal it or not; return a command that reads it."""
    place = copy(material / "set", folder / "set")
    for _ in range(chance.choice([1, 1, 1, 2])):
        damage_file(chance, chance.choice([*files_below(place), place / "manifest.json"]))
    if chance.random() < 0.6:
        reseal(place)
    return chance.choice(READERS).format(m=material, set=place).split() + ["--json"] * (chance.random() < 0.1)


def draw_runs(chance: random.Random, material: Path, folder: Path) -> list[str]:
    """Damage files of a run, and seal its checkpoints or not; return a command that reads it."""
    place = copy(material / "run", folder / "run")
    for _ in range(chance.choice([1, 1, 1, 2])):
        damage_file(chance, chance.choice(files_below(place)))
    if chance.random() < 0.7:
        for checkpoint in place.glob("checkpoints/*"):
            reseal(checkpoint)
    return chance.choice(OF_RUNS).format(m=material, run=place).split()


def draw_work(chance: random.Random, material: Path, folder: Path) -> list[str]:
    """Return a build or a page that goes on with a finished build, whose set and work folder have damaged files."""
    out = folder.parent / "out"
    for name in ("set", "set.work"):
        copy(material / name, out / name)
    for _ in range(chance.choice([1, 1, 2, 5])):
        files = files_below(out / "set.work") + files_below(out / "set")
        damage_file(chance, chance.choice(files), large=False)
    change = chance.choice(
        ["", "", "--set seed=5", "--set sources.sums.weight=2", "--set clean.near_duplicates.action='drop'", "--prune"]
    )
    command = chance.choice(
        [f"build {{m}}/data.toml --out set {BUILD} {change}"] * 4
        + ["clean-report set", "trace set --hash 00 --work set.work"]
    )
    return command.format(m=material).split()


KINDS: dict[str, Callable[[random.Random, Path, Path], list[str]]] = {
    "flags": draw_flags,
    "keys": draw_keys,
    "sets": draw_sets,
    "runs": draw_runs,
    "sources": draw_sources,
    "work": draw_work,
}

"""The recipe: what it accepts, and every fault of a file in one report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.good_recipe import GOOD, faults_of


def test_a_good_recipe(load: Any) -> None:
    recipe = load()
    assert [(source.name, source.weight) for source in recipe.sources] == [("prose", 87.0), ("code", 3.5)]
    assert [source.name for source in load(GOOD, "sources.prose.weight=0").sources] == ["code"]
    phase = '[[mix.phases]]\nname = "main"\nshare = 1.0\nweights = { "prose.en" = 1 }\n'
    text = GOOD.replace("prose", "prose.en") + f'sample_weights = {{ "prose.en" = 1, code = 2 }}\n{phase}'
    assert load(text, "sources.prose.en.weight=2").sources[0].weight == 2
    assert load(text, "sources.prose.en.weight=0").tokenizer.sample_weights == {"code": 2}
    # Only a change takes names out of tables.
    zero = text.replace("weight = 87", "weight = 0")
    assert load(zero, "sources.prose.en.weight=2").sources[0].weight == 2
    assert "mix.phases.main.weights: no source has the name 'prose.en'" in str(faults_of(load, zero))
    assert recipe.tokenizer.special_tokens == ["<|endoftext|>"]
    assert (recipe.seed, recipe.mix.tokens, recipe.mix.when_short) == (1337, "max", "error")


ALL_WRONG = """\
name = "no spaces please"
seed = -1
sede = 5
[[sources]]
name = "twice"
paths = ["{folder}/*.parquet"]
weight = -1
keep = { score = "about 3" }
[[sources]]
name = "twice"
paths = ["{folder}/*.txt"]
weight = inf
wieght = 1
delimiter = ";"
max_bytes = "many"
min_bytes = "few"
[[sources]]
name = "third"
paths = []
weight = nan
format = "orc"
kind = "hubb"
[[sources]]
paths = "{folder}/*.py"
weight = "3"
separator = ""
keep = { score = [1, "a"] }
[tokenizer]
vocab_size = 257
special_tokens = ["<|endoftext|>", "<|pad|>", "<|pad|>"]
pretokenizer = "gpt3"
eos_token = "<|eos|>"
sample_bytes = "0 GB"
[mix]
tokens = "all"
when_short = "srhink"
max_epochs = 0
[split]
val_tokens = -5
[shards]
tokens = 1.5
zstd_level = 40
val_tokens = 1
[shard]
tokens = 1
"""

EXPECTED = [
    "name: expected at most 100 ASCII letters, digits, ",
    "seed: expected 0 or more; got -1",
    "sede: unknown key. Did you mean 'seed'?",
    "sources: 2 sources are called 'twice'; expected distinct names",
    "sources.0.paths: '{folder}/*.parquet' matches no file",
    "sources.0.weight: expected 1e-18 or more; got -1",
    "sources.0.keep: score: expected a condition such as",
    "sources.1.weight: expected a finite number; got inf",
    "sources.1.wieght: unknown key. Did you mean 'weight'?",
    "sources.1.max_bytes: expected bytes as a number, or as text such as",
    "sources.1.min_bytes: expected bytes as a number, or as text such as",
    "sources.1.separator: required to cut '{folder}/a.txt' into documents. Give `separator`",
    "sources.1.delimiter: only files that are read as csv use it; '{folder}/*.txt' is read as text. ",
    "sources.third.paths: an empty list; expected at least one item",
    "sources.third.weight: expected a finite number; got nan",
    "sources.third.format: expected 'auto', 'parquet', ",
    "sources.third.kind: expected 'files' or 'hub'; got 'hubb'. Did you mean 'hub'?",
    "sources.3.name: required key is missing",
    "sources.3.paths: expected a list",
    "sources.3.weight: expected a number; got '3'. Write it without quotes: 3",
    "sources.3.separator: expected at least 1 character",
    "sources.3.keep: score: expected a list of texts, of numbers, or of booleans",
    "tokenizer.vocab_size: 257 is too small; 256 bytes and 3 special tokens need at least 259",
    "tokenizer.special_tokens: listed more than once: '<|pad|>'. Keep one of each",
    "tokenizer.pretokenizer: expected 'gpt2', 'llama3', 'qwen2' or 'o200k'; got 'gpt3'",
    "tokenizer.eos_token: '<|eos|>' is not among special_tokens",
    "tokenizer.sample_bytes: expected more than 0; got '0 GB'",
    "mix.tokens: expected a whole number or 'max'; got 'all'",
    "mix.when_short: expected 'error', 'shrink' or 'repeat'; got 'srhink'. Did you mean 'shrink'?",
    "mix.max_epochs: expected 1 or more; got 0",
    "split.val_tokens: expected 0 or more; got -5",
    "shards.tokens: expected a whole number; got 1.5",
    "shards.zstd_level: expected 19 or less; got 40",
    "shards.val_tokens: unknown key. Did you mean 'split.val_tokens'?",
    "shard: unknown key. Did you mean 'shards'?",
]


def test_every_fault_is_in_one_report(load: Any, folder: Path) -> None:
    faults = faults_of(load, ALL_WRONG)
    for expected in EXPECTED:
        expected = expected.replace("{folder}", str(folder))
        assert [fault for fault in faults if fault.startswith(expected)], expected
    unexpected = [
        fault for fault in faults if not any(fault.startswith(e.replace("{folder}", str(folder))) for e in EXPECTED)
    ]
    assert not unexpected
    assert len(set(faults)) == len(faults)


def test_the_command_reports_them_and_writes_nothing(run_cli: Any, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "r.toml").write_text(ALL_WRONG.replace("{folder}", str(folder)))
    before = sorted(tmp_path.rglob("*"))
    for command in (["build", "r.toml", "--out", "out", "--json"], ["plan", "r.toml"]):
        result = run_cli(*command)
        assert result.returncode == 2
        faults = [line for line in result.stderr.splitlines() if line.startswith("error: r.toml: ")]
        assert len(faults) >= len(EXPECTED)
        if "--json" in command:
            assert len(json.loads(result.stdout)["problems"]) == len(faults)
        assert "Traceback" not in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name = ", "not valid TOML"),
        (b"name = '\xff'", "not valid TOML: 'utf-8' codec can't decode"),
        (b"", "sources: required key is missing"),
        ("name = 'größe'".encode(), "name: expected at most 100 ASCII letters, digits, "),
        (None, "is a folder; `tokenmill init "),
        ("missing", "r.toml: cannot be read: No such file or directory. Expected a recipe in TOML"),
    ],
)
def test_files_that_are_no_recipe(content: bytes | str | None, message: str, run_cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    result = run_cli("build", path, "--out", "out")
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


FOREIGN = {
    "repo = 'a/b'": "sources.s.repo: not a key of kind = 'files'. Leave it out, or set `kind`.",
    "kind = 'hub'\nrepo = 'a/b'\nexclude = ['x']": "sources.s.exclude: not a key of kind = 'hub'.",
    "kind = 'hub'": "sources.s.repo: required key is missing.",
    "kind = 'hub'\nrepoo = 'a/b'": "sources.s.repoo: unknown key. Did you mean 'repo'?",
    "content = 'software-heritage'\ntext = 'x'": "sources.s.text: the text comes from `content`, not from a column.",
    "blob_id = 'x'": "sources.s.blob_id: only with content = 'software-heritage'.",
}


@pytest.mark.parametrize("keys", FOREIGN)
def test_keys_of_another_kind_are_refused(keys: str, load: Any) -> None:
    paths = "" if "hub" in keys else "paths = ['{folder}/*.jsonl']"
    text = f"name = 'x'\n[[sources]]\nname = 's'\nweight = 1\n{paths}\n{keys}\n[tokenizer]\nvocab_size = 300\n"
    assert [fault for fault in faults_of(load, text) if fault.startswith(FOREIGN[keys])]


def test_globs_that_cannot_be_listed(load: Any) -> None:
    urls = '["nosuch://x/*", "zip://*.txt::/missing.zip", "file:///missing/*.txt", "\\u0000"]'
    faults = faults_of(load, GOOD, f"sources.prose.paths={urls}")
    assert len([fault for fault in faults if fault.startswith("sources.prose.paths: ")]) == 4


def test_a_separator_for_files_that_are_not_cut_names_what_they_are(load: Any) -> None:
    with_separator = GOOD.replace("weight = 3.5", 'weight = 3.5\nseparator = "--"').replace(
        "weight = 87", 'weight = 87\nseparator = "--"'
    )
    prose, code = faults_of(load, with_separator)
    remedy = "Leave `separator` out, or give these files a source of their own"
    assert prose.endswith(f".jsonl' is read as jsonl. {remedy}")
    assert code.endswith(f'.py\' is read as its content says. {remedy}, or set format = "text"')

"""The recipe: what it accepts, and every fault of a file in one report."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline import recipe as recipes
from pipeline.recipe import Recipe, load_recipe, parse_size
from shards.settings import SettingsError

GOOD = """\
name = "good"
[[sources]]
name = "prose"
paths = ["{folder}/*.jsonl"]
weight = 87
[[sources]]
name = "code"
paths = ["{folder}/*.py"]
weight = 3.5
[tokenizer]
vocab_size = 300
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text('{"text": "a text", "score": 1}\n')
    (tmp_path / "data" / "a.py").write_text("print()")
    (tmp_path / "data" / "a.txt").write_text("a text")
    return tmp_path / "data"


@pytest.fixture
def load(tmp_path: Path, folder: Path) -> Callable[..., Recipe]:
    """Return `load(text, *overrides)`; `{folder}` in the text stands for the folder of the data."""

    def load_text(text: str = GOOD, *overrides: str) -> Recipe:
        path = tmp_path / "r.toml"
        path.write_text(text.replace("{folder}", str(folder)), encoding="utf-8")
        return load_recipe(path, overrides=list(overrides))

    return load_text


def faults_of(load: Callable[..., Recipe], *arguments: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(*arguments)
    return caught.value.faults


def test_a_good_recipe(load: Any) -> None:
    recipe = load()
    assert [(source.name, source.weight) for source in recipe.sources] == [("prose", 87.0), ("code", 3.5)]
    assert recipe.tokenizer.special_tokens == ["<|endoftext|>"]
    assert (recipe.seed, recipe.mix.tokens, recipe.mix.when_short) == (1337, "max", "error")


ALL_WRONG = """\
name = "no spaces please"
seed = -1
sede = 5
[[sources]]
name = "twice"
paths = ["{folder}/*.parquet"]
weight = 0
keep = { score = "about 3" }
[[sources]]
name = "twice"
paths = ["{folder}/*.txt"]
weight = inf
wieght = 1
max_bytes = "many"
min_bytes = "5"
[[sources]]
name = "third"
paths = []
weight = nan
format = "csv"
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
[shard]
tokens = 1
"""

EXPECTED = [
    "name: String should match pattern",
    "seed: Input should be greater than or equal to 0; got -1",
    "sede: unknown key. Did you mean 'seed'?",
    "sources: 2 sources are called 'twice'; expected distinct names",
    "sources.0.paths: '{folder}/*.parquet' matches no file",
    "sources.0.weight: Input should be greater than 0; got 0",
    "sources.0.keep: score: expected a condition such as",
    "sources.1.weight: Input should be a finite number; got inf",
    "sources.1.wieght: unknown key. Did you mean 'weight'?",
    "sources.1.max_bytes: expected bytes as a number, or as text such as",
    "sources.1.min_bytes: Input should be a valid integer; got '5'",
    "sources.1.separator: required to cut '{folder}/a.txt' into documents. Give `separator`",
    "sources.2.paths: List should have at least 1 item",
    "sources.2.weight: Input should be a finite number; got nan",
    "sources.2.format: Input should be 'auto', 'parquet', 'jsonl', 'text' or 'file'; got 'csv'",
    "sources.2.kind: Input should be 'files'",
    "sources.3.name: required key is missing",
    "sources.3.paths: Input should be a valid list",
    "sources.3.weight: Input should be a valid number; got '3'",
    "sources.3.separator: String should have at least 1 character",
    "sources.3.keep: score: expected a list of texts, of numbers, or of booleans",
    "tokenizer.vocab_size: 257 is too small; 256 bytes and 3 special tokens need at least 259",
    "tokenizer.special_tokens: listed more than once: '<|pad|>'. Keep one of each",
    "tokenizer.pretokenizer: Input should be 'gpt2', 'llama3', 'qwen2' or 'o200k'; got 'gpt3'",
    "tokenizer.eos_token: '<|eos|>' is not among special_tokens",
    "tokenizer.sample_bytes: Input should be greater than 0; got '0 GB'",
    "mix.tokens: Input should be a valid integer; got 'all'",
    "mix.tokens: Input should be 'max'; got 'all'",
    "mix.when_short: Input should be 'error', 'shrink' or 'repeat'; got 'srhink'",
    "mix.max_epochs: Input should be greater than or equal to 1; got 0",
    "split.val_tokens: Input should be greater than or equal to 0; got -5",
    "shards.tokens: Input should be a valid integer; got 1.5",
    "shards.zstd_level: Input should be less than or equal to 19; got 40",
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
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: r.toml: {len(faults_in(result.stderr))} problems")
        assert len(faults_in(result.stderr)) >= len(EXPECTED)
        assert "Traceback" not in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


def faults_in(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("  ")]


def test_data_that_cannot_be_read_is_reported_alike(run_cli: Any, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "r.toml").write_text(GOOD.replace("{folder}", str(folder)))
    (folder / "b.jsonl").write_text('{"body": 1}\n')
    (folder / "c.jsonl").write_text("")
    before = sorted(tmp_path.rglob("*"))
    result = run_cli("build", "r.toml", "--out", "out")
    assert result.returncode == 2
    assert "b.jsonl: no column 'text' in its first records; there are body" in result.stderr
    assert "c.jsonl: the file is empty" in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name = ", "not valid TOML"),
        (b"name = '\xff'", "not valid TOML: 'utf-8' codec can't decode"),
        (b"", "problems"),
        ("name = 'größe'".encode(), "name: String should match pattern"),
        (None, "Is a directory"),
    ],
)
def test_files_that_are_no_recipe(content: bytes | None, message: str, run_cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.mkdir() if content is None else path.write_bytes(content)
    result = run_cli("build", path, "--out", "out")
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_no_recipe_file(run_cli: Any) -> None:
    result = run_cli("plan", "missing.toml")
    assert result.returncode == 2
    assert "No such file or directory: 'missing.toml'" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("text", ["sources = []", "sources = 3", "[sources]\nname = 'x'", "sources = [1, 'x']", ""])
def test_sources_of_any_shape(text: str, load: Any) -> None:
    faults = faults_of(load, f'name = "x"\n{text}\n[tokenizer]\nvocab_size = 300\n')
    assert any(fault.startswith("sources") for fault in faults)


@pytest.mark.parametrize(
    "section",
    [
        "tokenizer = 3",
        "tokenizer = []",
        "[tokenizer]\nspecial_tokens = 'x'",
        "[tokenizer]\nspecial_tokens = [1, [2]]",
        "[tokenizer]\nspecial_tokens = ['']",
        "[tokenizer]\nvocab_size = true",
        "[tokenizer]\nfile = 'missing.json'",
        "[tokenizer]\nvocab_size = 300\nsample_weights = { prose = 1 }",
        "[tokenizer]\nvocab_size = 300\nsample_weights = { prose = 1, code = 0 }",
        "[tokenizer]\n",
    ],
)
def test_tokenizers_of_any_shape(section: str, load: Any) -> None:
    text = GOOD.partition("[tokenizer]")[0]
    text = text.replace('name = "good"\n', f'name = "good"\n{section}\n') if section[0] != "[" else text + section
    assert any(fault.startswith("tokenizer") for fault in faults_of(load, text))


@pytest.mark.parametrize("value", ["['parquet']", "5", "{ a = 1 }", "'csv'"])
def test_formats_of_any_shape(value: str, load: Any) -> None:
    faults = faults_of(load, GOOD, f"sources.prose.format={value}")
    assert any(fault.startswith("sources.0.format") for fault in faults)


def test_keys_that_do_not_fit_the_format(load: Any) -> None:
    overrides = ["sources.prose.separator='--'", "sources.code.keep.score='> 1'"]
    faults = faults_of(load, GOOD, *overrides)
    assert [fault.split(":")[0] for fault in faults] == ["sources.0.separator", "sources.1.keep"]


def test_globs_that_cannot_be_listed(load: Any) -> None:
    urls = '["nosuch://x/*", "zip://*.txt::/missing.zip", "file:///missing/*.txt", "\\u0000"]'
    faults = faults_of(load, GOOD, f"sources.prose.paths={urls}")
    assert len([fault for fault in faults if fault.startswith("sources.0.paths: ")]) == 4


OVERRIDES = [
    ("mix.tokens=1_000", lambda recipe: recipe.mix.tokens == 1000),
    ("mix.tokens=max", lambda recipe: recipe.mix.tokens == "max"),
    ("mix.when_short = shrink", lambda recipe: recipe.mix.when_short == "shrink"),
    ("sources.0.weight=2.5", lambda recipe: recipe.sources[0].weight == 2.5),
    ("sources.code.weight=2", lambda recipe: recipe.sources[1].weight == 2),
    ("sources.prose.keep.score=>= 1", lambda recipe: recipe.sources[0].keep == {"score": ">= 1"}),
    ("sources.prose.keep={score = [1, 2]}", lambda recipe: recipe.sources[0].keep == {"score": [1, 2]}),
    ('tokenizer.special_tokens=["<|endoftext|>", "=é"]', lambda recipe: recipe.tokenizer.special_tokens[1] == "=é"),
    ("tokenizer.sample_bytes=1.5 MB", lambda recipe: recipe.tokenizer.sample_bytes == 1_500_000),
    ("name=other", lambda recipe: recipe.name == "other"),
]


@pytest.mark.parametrize(("override", "check"), OVERRIDES, ids=[override for override, _ in OVERRIDES])
def test_overrides(override: str, check: Callable[[Recipe], bool], load: Any) -> None:
    assert check(load(GOOD, override))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("mix.tokens", "--set 'mix.tokens': expected KEY=VALUE"),
        ("=3", "--set '=3': expected KEY=VALUE"),
        ("sources.5.weight=1", "--set 'sources.5.weight=1': no '5' in this file"),
        ("sources.prosa.weight=1", "no 'prosa' in this file"),
        ("sources=1", "sources: Input should be a valid list"),
        ("sources.weight=1", "sources is a list; name one of its items first"),
        ("name.x=1", "no 'name' in this file|name is a plain value"),
        ("mixx.tokens=1", "mixx: unknown key. Did you mean 'mix'?"),
        ("mix.token=1", "mix.token: unknown key. Did you mean 'tokens'?"),
        ("mix.tokens=1\nseed = 5", "mix.tokens"),
        ("sources.0.weight=-1", "sources.0.weight: Input should be greater than 0; got -1"),
        ("a..b=1", "a: unknown key"),
    ],
)
def test_bad_overrides(override: str, message: str, load: Any) -> None:
    faults = faults_of(load, GOOD, override)
    assert any(part in fault for part in message.split("|") for fault in faults), faults


def test_overrides_and_faults_of_the_file_are_reported_together(load: Any) -> None:
    faults = faults_of(load, GOOD.replace("weight = 87", "weight = 0"), "nonsense", "mix.max_epochs=0")
    assert [fault.split(":")[0] for fault in faults] == ["--set 'nonsense'", "sources.0.weight", "mix.max_epochs"]


def test_a_set_s_recipe_json_is_a_recipe(load: Any, tmp_path: Path) -> None:
    override = "tokenizer.sample_weights={prose = 1, code = 2}"
    recipe = load(GOOD, override, "sources.prose.keep.score='> 0'", "sources.prose.max_bytes='1 MiB'")
    (tmp_path / "recipe.json").write_text(recipe.to_json(), encoding="utf-8")
    again = load_recipe(tmp_path / "recipe.json")
    assert again == recipe
    assert again.to_json() == recipe.to_json()
    assert load_recipe(tmp_path / "recipe.json", overrides=["sources.prose.weight=5"]).sources[0].weight == 5
    for text in ("{", "[1]", '"x"', "3", "[" * 100_000):
        (tmp_path / "recipe.json").write_text(text)
        with pytest.raises(SettingsError, match=r"not valid JSON|expected a table of keys"):
            load_recipe(tmp_path / "recipe.json")
    data = json.loads(recipe.to_json())
    data["sources"][0]["wieght"] = 3
    (tmp_path / "recipe.json").write_text(json.dumps(data))
    with pytest.raises(SettingsError, match=r"sources\.0\.wieght: unknown key\. Did you mean 'weight'"):
        load_recipe(tmp_path / "recipe.json")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1 GB", 10**9),
        ("1GB", 10**9),
        ("512 MiB", 512 << 20),
        ("1.5 kB", 1500),
        ("1.5 KB", 1500),
        ("2 kiB", 2048),
        ("2 KiB", 2048),
        ("7", 7),
        ("7 B", 7),
        ("1_000 B", 1000),
        ("3 T", 3 * 10**12),
        ("9007199254740993", 9007199254740993),
        ("0.1 GB", 10**8),
        (5, 5),
    ],
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "1 gb", "1 XB", "-1 GB", "1e9", "1,5 GB", "1 GB more", "_", "nan", "1..5 MB"]
)
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes as a number"):
        parse_size(text)


def test_every_key_is_documented() -> None:
    tree = ast.parse(inspect.getsource(recipes))
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or not issubclass(getattr(recipes, node.name), BaseModel):
            continue
        for item, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                # A section's own docstring says what it is.
                section = ast.unparse(item.annotation).endswith("Recipe")
                assert documented or section, f"{node.name}.{item.target.id}"


def test_shipped_recipes_name_known_keys_only() -> None:
    """The data may be absent; nothing else may be wrong."""
    paths = sorted((Path(__file__).parents[2] / "recipes" / "data").glob("*.toml"))
    assert paths
    faults: list[str] = []
    for path in paths:
        try:
            load_recipe(path)
        except SettingsError as error:
            faults += error.faults
    assert not [fault for fault in faults if "matches no file" not in fault and "cannot be listed" not in fault]

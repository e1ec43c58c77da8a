"""Real text, small files of every format, and the command line as a person runs it."""

import ast
import pydoc_data.topics
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.recipe.schema import Recipe
from tests.support.builds import Built, build_here, build_once, digests, recipe_text, write_corpus
from tests.support.cleaned_recipe import write_cleaned_recipe
from tests.support.ray_cluster import RayCluster
from tests.support.recipes import GOOD
from tests.support.servers.azurite import azure_environment, azurite_store, make_container
from tests.support.servers.objects import ObjectServer, aws_environment

# Two busy cores: a deadline would tell about the machine, not about the code.
hypothesis.settings.register_profile("tokenmill", deadline=None)
hypothesis.settings.load_profile("tokenmill")

UNICODE = [
    "naïve café, Ĳsselmeer, ﬁn, Ω≈ç√∫, ½ + ⅓",
    "中文字符和日本語のテキスト、한국어",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 e\u0301 a\u0308\u0323 \u202eright to left\u202c שלום مرحبا",
    "tabs\tand\r\nDOS lines\r\n\n\n   \u00a0\u2003spaces\u200b \ufeff",
    "<|endoftext|> and <|pad|> are characters <|user|>here<|assistant|>",
    "\x00NUL\x01\x7f controls \x1b[31m",
    " ",
    "\n",
    "x",
]


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """Return a few hundred real texts, some with unicode of every kind; none is empty, no two are equal."""
    texts = [str(text) for text in pydoc_data.topics.topics.values()]
    library = Path(sysconfig.get_path("stdlib"))
    for name in ("argparse", "difflib", "doctest", "inspect", "typing", "datetime", "statistics", "logging/__init__"):
        tree = ast.parse((library / f"{name}.py").read_text(encoding="utf-8"))
        nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
        found = (ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, nodes))
        texts += [text for text in found if text]
    texts += [f"{text[:300]} {extra} {text[300:600]}" for text, extra in zip(texts, UNICODE * 3, strict=False)]
    return list(dict.fromkeys([*texts, *UNICODE]))


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recipe of a small corpus of three sources, whose paths are relative to its folder."""
    folder = tmp_path_factory.mktemp("three")
    write_corpus(folder / "corpus")
    path = folder / "recipe.toml"
    path.write_text(recipe_text(Path("corpus")))
    return path


@pytest.fixture(scope="session")
def expected(recipe: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of its set, built on disk by one process."""
    build_here(recipe, recipe.parent / "set")
    return digests(recipe.parent / "set")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return the set of a recipe with every feature on, built by one process, once for all of pytest-xdist."""
    return build_once(tmp_path_factory, "whole", write_cleaned_recipe)


@pytest.fixture
def bucket(moto: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of an empty bucket."""
    aws_environment(monkeypatch, moto.url)
    moto.reset()
    return moto.empty_bucket()


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of an empty container of Azure's emulator, or skip."""
    with azurite_store(tmp_path / "azurite") as server:
        azure_environment(monkeypatch, server)
        yield make_container(server, "box")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """Return a Ray cluster with two nodes, or skip."""
    with RayCluster() as cluster:
        yield cluster


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
        return load_checked_recipe(path, overrides=list(overrides))

    return load_text

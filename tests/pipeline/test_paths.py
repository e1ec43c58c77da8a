"""The paths of a recipe begin at its folder, from wherever a command runs; those of --set at the working directory."""

import os
import shutil
from pathlib import Path

import pytest

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.recipe.paths import RECIPE_FOLDER_FILE
from pipeline.sources.files import list_files
from tests.support.builds import build_here, digests, read_json
from tests.support.provenance import compare_with_sources
from tests.support.recipes import write_texts

pytestmark = pytest.mark.long


RECIPE = """\
name = "a"
[[sources]]
name = "s"
weight = 1
paths = ["../texts/*.jsonl"]
[tokenizer]
vocab_size = 300
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project: texts, and a recipe in a folder beside them; a glob could mean its name, too."""
    (tmp_path / "p*/texts").mkdir(parents=True)
    (tmp_path / "p*/recipes").mkdir()
    (tmp_path / "elsewhere").mkdir()
    texts = [f"document {n} " + " ".join(str(n * k % 97) for k in range(60)) for n in range(50)]
    write_texts(tmp_path / "p*/texts/a.jsonl", texts)
    write_texts(tmp_path / "p/texts/b.jsonl", ["of another project"])
    (tmp_path / "p*/recipes/a.toml").write_text(RECIPE)
    return tmp_path / "p*"


def test_no_working_directory_is_needed_for_paths_of_a_recipe(project: Path, monkeypatch: pytest.MonkeyPatch):
    (project / "gone").mkdir()
    monkeypatch.chdir(project / "gone")
    (project / "gone").rmdir()
    (source,) = load_checked_recipe(project / "recipes/a.toml").sources
    assert list_files(source)


@pytest.mark.parametrize("place", [".", "recipes", "../elsewhere", "/"])
def test_paths_begin_at_the_folder_of_the_recipe_and_those_of_set_at_the_working_directory(
    place: str, project: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(project / place)
    recipe = Path(os.path.relpath(project / "recipes/a.toml"))
    (source,) = load_checked_recipe(recipe).sources
    assert [path.written for path in source.paths] == ["../texts/*.jsonl"]
    # Paths of --set begin there.
    changed = load_checked_recipe(
        recipe, overrides=[f'sources.s.paths=["{os.path.relpath(project / "texts/a.jsonl")}"]']
    )
    for own in (source, *changed.sources):
        assert [Path(file.url).resolve() for file in list_files(own)] == [project / "texts/a.jsonl"]


def test_a_set_is_found_again_by_its_recipe(project: Path, monkeypatch: pytest.MonkeyPatch):
    out = project / "out/a"
    monkeypatch.chdir(project.parent / "elsewhere")
    build_here(project / "recipes/a.toml", out)
    recorded = read_json(out / "recipe.json")
    assert recorded["sources"][0]["paths"] == ["../texts/*.jsonl"]  # as the recipe says it
    assert (project / "out/a.work" / RECIPE_FOLDER_FILE).read_text() == "../../recipes\n"
    assert not [path for path in out.iterdir() if path.name.startswith(".")]
    for place in (project, project / "recipes", project.parent / "elsewhere"):
        monkeypatch.chdir(place)
        assert compare_with_sources(out, 50) == (50, 0)
    monkeypatch.chdir(project.parent / "elsewhere")
    build_here(out / "recipe.json", project / "deeper/out/b")
    assert digests(out) == digests(project / "deeper/out/b")
    # Set and files are moved together.
    project.rename(project.parent / "moved")
    moved = project.parent / "moved/deeper/out/b"
    assert compare_with_sources(moved, 50) == (50, 0)
    # recipe.json is the recipe: it may take the place of the one that built the set.
    shutil.copy(moved / "recipe.json", project.parent / "moved/recipes/again.json")
    (source,) = load_checked_recipe(project.parent / "moved/recipes/again.json").sources
    assert len(list_files(source)) == 1


def test_a_set_in_a_bucket_finds_its_sources(project: Path, bucket: str):
    build_here(project / "recipes/a.toml", f"{bucket}/set")
    build_here(project / "recipes/a.toml", project / "set")
    assert digests(f"{bucket}/set") == digests(project / "set")
    assert compare_with_sources(f"{bucket}/set", 50) == (50, 0)


def test_a_tokenizer_of_the_name_that_sets_give_it(project: Path):
    build_here(project / "recipes/a.toml", project / "first")
    shutil.copy(project / "first/tokenizer.json", project / "recipes/tokenizer.json")
    text = RECIPE.replace("vocab_size = 300", 'file = "tokenizer.json"\npretokenizer = "gpt2"')
    (project / "recipes/given.toml").write_text(text)
    build_here(project / "recipes/given.toml", project / "given")
    (project / "recipes/tokenizer.json").unlink()
    build_here(project / "given/recipe.json", project / "again")  # with the set's own, which has the same bytes
    assert digests(project / "again")["train-00000.bin.zst"] == digests(project / "given")["train-00000.bin.zst"]

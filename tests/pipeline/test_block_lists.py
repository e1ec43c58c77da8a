"""Block lists: what a file may hold, which documents its hashes name, and how they are counted."""

import codecs
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.encode.run import HashKey, RunList
from pipeline.mix.block_lists import read_list
from pipeline.mix.cuts import MixTask, mix_runs
from pipeline.recipe.paths import RecipePath, locate, state_recipe_folder
from pipeline.recipe.schema import Recipe
from shards.errors import InputError
from shards.stores.store import FolderStore
from tests.support.recipes import GOOD, faults_of
from tests.support.runs import Document, make_recipe, write_runs

TOP = (1 << 64) - 1


def line_of(key: HashKey) -> str:
    return f"{key[0]:016x}{key[1]:016x}\n"


def write_list(path: Path, keys: list[HashKey]) -> RecipePath:
    path.write_text("# Block list\n" + "".join(line_of(key) for key in keys))
    return RecipePath(str(path), path.name)


def test_what_trace_writes_and_a_person_edits_is_read(tmp_path: Path):
    path = tmp_path / "block.txt"
    text = (
        "# Block list: the content hashes (XXH3-128) of 3 documents\r\n"
        f"# found by --text {'very long ' * 4096}\n"
        f"{line_of((5, TOP)).upper()}\n  {line_of((0, 0))}\t\n{line_of((5, TOP))}{line_of((5, 1)).strip()}"
    )
    for data in (text.encode(), codecs.BOM_UTF8 + text.encode()):
        path.write_bytes(data)
        hashes, digest = read_list(RecipePath(str(path)))
        assert hashes.tolist() == [[0, 0], [5, 1], [5, TOP]]
        assert digest == hashlib.sha256(data).hexdigest()
    path.write_text("")
    assert len(read_list(RecipePath(str(path)))[0]) == 0


def test_a_list_that_changes_on_the_way_stops_the_mix(tmp_path: Path):
    runs = write_runs(tmp_path / "runs", [[Document((5, 5), 10)], [Document((6, 6), 10)]], [[], []])
    write_list(tmp_path / "a.txt", [(1, 1)])
    recipe = make_recipe([1, 1]).with_values(drop_hashes=[locate(tmp_path, "a.txt").pinned("0" * 64)])
    listed = RunList(FolderStore(tmp_path), runs)
    listed.write()
    with pytest.raises(InputError, match="it was changed, or is another list"):
        mix_runs(tmp_path, MixTask(recipe, listed.address), None)


Load = Callable[..., Recipe]


def test_a_recipe_records_the_digest_of_its_lists(tmp_path: Path, load: Load):
    _, digest = read_list(write_list(tmp_path / "a.txt", [(1, 2)]))
    recipe = load('drop_hashes = ["a.txt"]\n' + GOOD)
    assert recipe.drop_hashes == [f"{tmp_path}/a.txt#sha256={digest}"]
    assert [read_list(entry)[0].tolist() for entry in recipe.drop_hashes] == [[[1, 2]]]
    # A set's recipe.json is elsewhere, and leads to the list.
    (tmp_path / "set").mkdir()
    (tmp_path / "set/recipe.json").write_text(recipe.to_json())
    state_recipe_folder(FolderStore(tmp_path / "set.work"), tmp_path)
    assert load_checked_recipe(tmp_path / "set/recipe.json").to_json() == recipe.to_json()
    write_list(tmp_path / "a.txt", [(1, 3)])
    changed = faults_of(lambda: load_checked_recipe(tmp_path / "set/recipe.json"))
    assert "it was changed, or is another list" in changed[0]

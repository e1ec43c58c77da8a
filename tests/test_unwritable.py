"""Places of another user, which no command writes to; the golden refusals have other bad places."""

import os
from pathlib import Path

import pytest

from tests.support.builds import build_here, call_here
from tests.support.recipes import write_small_recipe

FOLDERS = {
    "build": "build {recipe} --workers 1 --out {place}",
    "work": "build {recipe} --workers 1 --out {tmp}/new --work {place}",
    "report": "report {set} --workers 1 --out {place}",
    "audit": "audit {set} --workers 1 --out {place}",
    "export": "export {set} --to nanogpt --out {place}",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build_here(write_small_recipe(folder), folder / "set")
    return folder


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("command", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_of_somebody_else(command: str, built: Path, tmp_path: Path):
    (tmp_path / "locked").mkdir(mode=0o555)
    words = command.format(recipe=built / "recipe.toml", set=built / "set", place=tmp_path / "locked/x", tmp=tmp_path)
    done = call_here(*words.split())
    assert (done.returncode, str(tmp_path / "locked") in done.stderr) == (2, True), done.stderr
    assert "This user has no permission. Change the permissions" in done.stderr

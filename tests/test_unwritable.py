"""Places that cannot be written to: each command names the place and a remedy, and changes nothing there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shards.stores.files import atomic_open
from tests.support.builds import build_here, call_here
from tests.support.recipes import write_small_recipe
from tokenmill.__main__ import main

FOLDERS = {
    "build": "build {recipe} --workers 1 --out {place}",
    "work": "build {recipe} --workers 1 --out {tmp}/new --work {place}",
    "report": "report {set} --workers 1 --out {place}",
    "audit": "audit {set} --workers 1 --out {place}",
    "export": "export {set} --to nanogpt --out {place}",
}
FILES = {
    "trace": "trace {set} --text a --workers 1 --out {place}",
    "audit": "audit {set} --workers 1 --write-block-list {place}",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    build_here(write_small_recipe(folder), folder / "set")
    return folder


def run(command: str, built: Path, place: Path | str, tmp_path: Path) -> str:
    words = command.format(recipe=built / "recipe.toml", set=built / "set", place=place, tmp=tmp_path)
    done = call_here(main, *words.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert str(Path(place).parent) in done.stderr
    return done.stderr


@pytest.mark.parametrize("command", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_that_cannot_be_made(command: str, built: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    beyond = run(command, built, tmp_path / "file/x", tmp_path)
    assert "is a file, not a folder. Correct the path." in beyond or "Remove it, or give another path." in beyond
    taken = run(command, built, tmp_path / "file", tmp_path)
    assert "Remove it, or give another" in taken or "expected a folder. Choose another" in taken
    assert (tmp_path / "file").read_text() == "mine"
    nowhere = run(command, built, "/proc/tokenmill", tmp_path)
    assert "Correct the path. If it is to be written: nothing can be made there; choose another place." in nowhere


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("command", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_of_somebody_else(command: str, built: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    assert "This user has no permission. Change the permissions" in run(command, built, tmp_path / "locked/x", tmp_path)


@pytest.mark.parametrize("command", FILES.values(), ids=FILES)
def test_a_file_that_cannot_be_made(command: str, built: Path, tmp_path: Path) -> None:
    assert "choose another place." in run(command, built, "/proc/tokenmill", tmp_path)
    (tmp_path / "folder").mkdir()
    run(command, built, tmp_path / "folder", tmp_path)
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_device_or_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    """A file that is written beside it and renamed would take its place: as root even that of /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    refusal = r"pipe: is not a regular file, and would be replaced\. Give another"
    with pytest.raises(ValueError, match=refusal), atomic_open(tmp_path / "pipe") as file:
        file.write(b"x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert list(tmp_path.iterdir()) == [tmp_path / "pipe"]

"""What builds that end leave behind, and that two do not work in one folder. `test_same_bytes.py` interrupts them."""

# pyright: reportUnknownMemberType=false

import tempfile
from pathlib import Path

import pytest

from shards.stores.files import lock_folder
from tests.support.builds import build_here, run_build, wait_until
from tests.support.recipes import write_small_recipe
from tests.support.started import kill_in

pytestmark = pytest.mark.long


@pytest.mark.parametrize("ending", ["whole", "failed", "killed"])
def test_a_build_leaves_nothing_in_the_temporary_folder(
    recipe: Path, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    left = Path(tempfile.mkdtemp(dir="/tmp"))  # the path of a socket has at most 107 bytes
    monkeypatch.setenv("TMPDIR", str(left))
    if ending == "killed":
        assert kill_in("encode", recipe, tmp_path / "set", delay_s=0)
    else:
        options, status = ([], 0) if ending == "whole" else (["--tokens", "1T"], 2)
        run_build(write_small_recipe(tmp_path), tmp_path / "set", "--workers", "2", *options, expect=status)
    wait_until(lambda: not any(left.iterdir()), "the fork server to delete the folder of its socket", seconds=20)
    left.rmdir()


@pytest.mark.parametrize("held", ["set", "set.work"])
def test_a_second_build_in_the_same_folder_is_refused(recipe: Path, tmp_path: Path, held: str):
    (tmp_path / held).mkdir()
    with lock_folder(tmp_path / held):  # what another build would hold
        refused = build_here(recipe, tmp_path / "set", expect=2)
    assert f"{tmp_path / held}: another process is running here" in refused["stderr"]
    assert not (tmp_path / "set.work" / "encode").exists()

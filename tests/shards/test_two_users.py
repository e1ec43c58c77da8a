"""Two users on one machine: what the other one has put, or puts, into a folder that both can write to."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.builder.clean_report import write_page
from pipeline.engine import attempts
from pipeline.numba_compiler import find_numba_folder
from shards.errors import InputError, RunError
from shards.stores.cache import Cache
from shards.stores.files import check_own_folder, lock_folder, write_folder, write_text
from shards.stores.object_store import open_objects
from tests.support.builds import call_here
from tests.support.recipes import write_small_recipe
from trainer.metrics import MetricsLog
from trainer.recipe import load_train_recipe

OTHER = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")

Act = Callable[[str], None]


@pytest.fixture
def shared() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/export.json").write_text("mine")
    return tmp_path / "home"


@pytest.fixture
def other(shared: Path, mine: Path) -> Act:
    """Run lines of the shell as the other user, in the shared folder; `$home` is where this user's files are."""

    def act(code: str) -> None:
        before = f"set -e\numask 0\nhome={mine}\n"
        subprocess.run(["/bin/sh", "-c", before + code], cwd=shared, user=OTHER, group=OTHER, check=True)

    return act


def check_mine(mine: Path) -> None:
    assert [path.name for path in mine.iterdir()] == ["export.json"]
    assert (mine / "export.json").read_text() == "mine"


def check_refused(words: str) -> None:
    done = call_here(*words.split())
    assert (done.returncode, "belongs to another user" in done.stderr) == (2, True), (words, done.stderr)


@pytest.mark.parametrize("keep", [True, False])
def test_a_hidden_folder_of_the_other_user_is_not_used(shared: Path, mine: Path, other: Act, keep: bool):
    other(
        """
        mkdir .out.unfinished .out.0123456789abcdef.unfinished
        for name in .out.unfinished .out.0123456789abcdef.unfinished; do ln -s $home/export.json $name; done
        ln -s $home .out.0123456789abcde0.unfinished
        """
    )
    with write_folder(shared / "out", keep=keep) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert not list(folder.iterdir())
        (folder / "export.json").write_text("new")
    assert (shared / "out/export.json").read_text() == "new"
    check_mine(mine)
    assert len(list(shared.iterdir())) == 4


@pytest.mark.parametrize("put", ["mkdir $name", "ln -s $home $name"])
def test_a_hidden_folder_that_the_other_user_exchanges_is_not_published(shared: Path, mine: Path, other: Act, put: str):
    with pytest.raises(RunError, match="another user has replaced"), write_folder(shared / "out") as folder:
        other(f"name={folder.name}; mv $name away; {put}")
    assert not (shared / "out").is_file()
    assert not any((shared / "out").glob("*"))
    check_mine(mine)


def test_a_folder_of_the_other_user_is_not_written_to_or_replaced(
    shared: Path, mine: Path, other: Act, good_set: Path, tmp_path: Path
):
    other("mkdir empty run; ln -s $home run/checkpoints")
    recipe = write_small_recipe(tmp_path)
    train = f"train {Path(__file__).parents[2]}/recipes/train/tinystories-28m.toml --shards {good_set}"
    for words in (
        f"build {recipe} --workers 1 --work {tmp_path}/work --out {shared}/empty",
        f"export {good_set} --to nanogpt --out {shared}/empty",
        f"pull a/b --out {shared}/empty",
        f"{train} --run {shared}/run",
    ):
        check_refused(words)
    with pytest.raises(InputError, match="belongs to another user"), write_folder(shared / "out"):
        other("mkdir out")  # which would give the new folder its rights
    assert [path.name for path in sorted(shared.rglob("*"))] == ["empty", "out", "run", "checkpoints"]
    check_mine(mine)


def test_files_about_sets_and_runs_are_not_written_to_a_folder_of_the_other_user(
    shared: Path, mine: Path, other: Act, good_set: Path, tmp_path: Path
):
    other("mkdir empty")
    runs = [tmp_path / name for name in "ab"]
    recipe = load_train_recipe(Path(__file__).parents[2] / "recipes/train/tinystories-28m.toml")
    for run in runs:
        run.mkdir()
        (run / "recipe.json").write_text(recipe.model_dump_json())
        (run / "metrics.jsonl").write_text('{"step": 1, "tokens": 1, "loss": 1.0, "seconds": 1.0}\n')
        (run / "run.json").write_text(json.dumps({"shards": "/set", "manifest_sha256": "a" * 64}))
        (run / "tokenizer.json").write_text("{}")
    compare, out = f"compare {runs[0]} {runs[1]}", shared / "empty"
    for words in (
        f"plot {runs[0]} --out {out}",
        f"{compare} --out {out}",
        f"audit {good_set} --workers 1 --out {out}",
        f"audit {good_set} --workers 1 --write-block-list {out}/list",
        f"report {good_set} --workers 1 --out {out}",
        f"trace {good_set} --text the --out {out}/list",
        f"demo-corpus {out}",
    ):
        check_refused(words)
    with pytest.raises(InputError, match="belongs to another user"):
        write_page({}, out / "page.html")
    assert not list(out.iterdir())
    # In an own folder, a link is replaced and what it leads to is not written.
    for name in ("metrics.png", "metrics.svg", "compare.html"):
        (tmp_path / name).symlink_to(mine / "export.json")
    for words in (f"plot {runs[0]} --out {tmp_path}", f"{compare} --out {tmp_path}"):
        call_here(*words.split(), expect=0)
    check_mine(mine)


def test_a_link_of_the_other_user_is_refused_as_a_final_name(
    shared: Path, mine: Path, other: Act, good_set: Path, tmp_path: Path
):
    """In a folder that only this user can write to, and as root's or this user's, a link is followed as ever."""
    other("ln -s $home/new link; ln -s $home/export.json file; ln -s $home/.. up")
    recipe, link = write_small_recipe(tmp_path), shared / "link"
    train = f"train {Path(__file__).parents[2]}/recipes/train/tinystories-28m.toml --shards {good_set}"
    commands = (
        f"build {recipe} --workers 1 --out {link}",
        f"build {recipe} --workers 1 --out {shared}/up/set",
        f"build {recipe} --workers 1 --out {tmp_path}/set --work {link}",
        f"export {good_set} --to nanogpt --out {link}",
        f"pull a/b --out {link}",
        f"{train} --run {link}",
        f"audit {good_set} --workers 1 --out {link}",
        f"audit {good_set} --workers 1 --write-block-list {shared}/file",
        f"report {good_set} --workers 1 --out {link}",
        f"trace {good_set} --text the --out {shared}/file",
        f"demo-corpus {link}",
        f"init {tmp_path}/notes --out {shared}/up/r.toml",
    )
    ended = ((words, call_here(*words.split())) for words in commands)
    found = [(words, done.stderr) for words, done in ended if "is a link of another user" not in done.stderr]
    assert not found
    for write in (lambda: write_text(shared / "file", ""), lambda: Cache(link)):
        with pytest.raises(InputError, match="is a link of another user"):
            write()
    check_mine(mine)
    assert {path.name for path in tmp_path.iterdir()} <= {"home", "notes", "recipe.toml", "set", "set.work"}
    (mine / "new").mkdir()
    shared.chmod(0o755)
    call_here("export", good_set, "--to", "nanogpt", "--out", link, expect=0)
    assert (mine / "new/export.json").exists()


def test_own_leftovers_are_removed(shared: Path):
    with pytest.raises(OSError, match="full"), write_folder(shared / "out", keep=True) as folder:
        raise OSError("the disk is full")
    with lock_folder(folder), pytest.raises(InputError, match="another process"), write_folder(shared / "out"):
        pass
    with write_folder(shared / "out") as new:
        assert new != folder
    assert [path.name for path in shared.iterdir()] == ["out"]


def test_no_moment_gives_a_folder_its_name_before_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def end(_: Path, target: Path) -> None:
        assert not target.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", end)
    with pytest.raises(KeyboardInterrupt), write_folder(tmp_path / "out") as folder:
        (folder / "file").touch()
    assert not list(tmp_path.iterdir())


def test_work_cache_scratch_and_code_in_a_folder_of_the_other_user(
    shared: Path, mine: Path, other: Act, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    other("mkdir theirs; ln -s $home theirs/encode")
    recipe = write_small_recipe(tmp_path)
    theirs = shared / "theirs"
    os.symlink(theirs, tmp_path / "link")
    for place in (theirs, tmp_path / "link"):
        check_refused(f"build {recipe} --workers 1 --out {tmp_path}/set --work {place}")
        with pytest.raises(InputError, match="belongs to another user"):
            Cache(place)
    sources = Path(attempts.__file__).parent
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    kept = Path(find_numba_folder(sources))
    assert kept.is_dir()
    os.chown(kept, OTHER, OTHER)
    assert find_numba_folder(sources) == ""
    monkeypatch.setattr(attempts, "default_scratch", lambda: theirs)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    stage = open_objects("s3://bucket/work")
    with (
        pytest.raises(InputError, match="belongs to another user"),
        attempts.open_attempt(stage, None, None, digest="d", label="l"),
    ):
        pass
    check_mine(mine)


def test_links_in_an_own_cache_or_run_are_not_followed(mine: Path, tmp_path: Path):
    folder = tmp_path / "cache"
    cache = Cache(folder, limit=1000)
    cache.put("key", b"content")
    (kept,) = (folder / "keyed").iterdir()
    kept.rename(tmp_path / "kept")
    (folder / "keyed" / f".{kept.name}.part").symlink_to(mine / "export.json")
    cache.put("key", b"other")
    (folder / "keyed" / f".{kept.name}.part").symlink_to(mine / "export.json")
    (folder / ("0" * 64)).symlink_to(mine)
    Cache(folder, limit=1)
    check_mine(mine)
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(mine / "new")
    with pytest.raises(InputError, match="symbolic links"):
        Cache(folder)
    (tmp_path / "metrics.jsonl").symlink_to(mine / "new")
    with pytest.raises(OSError, match="symbolic links"):
        MetricsLog(tmp_path, step=0)
    check_mine(mine)


def test_folders_of_root_and_of_a_file_system_with_one_owner(shared: Path, monkeypatch: pytest.MonkeyPatch):
    check_own_folder(shared)
    os.chown(shared, OTHER, OTHER)
    with pytest.raises(InputError, match=f"uid {OTHER}; this is 0"):
        check_own_folder(shared)
    made = tempfile.TemporaryFile

    def squashed(dir: Path) -> object:  # a new file gets the owner of every file
        file = made(dir=dir)
        os.fchown(file.fileno(), OTHER, OTHER)
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", squashed)
    check_own_folder(shared)

"""Globs over local files: Python's, but each folder once; what is left out is said."""

import codecs
import glob
import os
import tempfile
from pathlib import Path

import pytest

from pipeline.sources.files import list_files
from pipeline.sources.globs import HIDDEN, find_paths
from pipeline.sources.survey import survey
from tests.support.reading import files_source
from tests.support.recipes import write_file

NAMES = ("a.txt", "b/a.txt", "b/c/d.md", "b/c/.e.txt", ".f/g.txt", ".f/h/i.txt", "[j]/k.txt", "b.txt/l", "é b/m.txt")
GLOBS = (
    "* ** **/* **/*.txt b/**/* */*.txt **/c/* **/c/** ?.txt [ab]* [[]j]/* none/** **/ */ .f/* .f/**/*.txt .* **/.e.txt "
    "b/../*.txt b//* **/**/*.txt */** **.txt a.txt"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        write_file(tmp_path / "data" / name, f"{name}\n")
    return tmp_path / "data"


@pytest.mark.parametrize("written", GLOBS.split())
def test_globs_are_those_of_python(written: str, folder: Path):
    """Both list the same files, by the same paths; with what is hidden, also what Python lists if asked for it."""
    whole = f"{folder}/{written}" + ("/*" if written.endswith("**") else "")
    found = [pair for pair in find_paths(whole, {}) if os.path.isfile(pair[0])]
    shown = {path for path, is_hidden in found if not is_hidden}
    files = {path for path in glob.glob(f"{folder}/{written}", recursive=True) if os.path.isfile(path)}
    every = glob.glob(f"{folder}/{written}", recursive=True, include_hidden=True)
    assert shown == files
    assert {path for path, _ in found} == {path for path in every if os.path.isfile(path)}


def test_links_that_lead_up_are_followed_once(folder: Path):
    """Forty levels of two links each were 2^40 paths."""
    for name in ("0", "b/up", "b/c/up", "z"):
        (folder / name).symlink_to(folder)
    (folder / "1").symlink_to(folder / "b")
    write_file(folder.parent / "other/o.txt", "o\n")
    (folder / "b/out").symlink_to(folder.parent / "other")
    (folder / "kept").symlink_to(folder / ".f/h")
    (folder / "s.txt").symlink_to("s.txt")
    (folder / "null.txt").symlink_to(os.devnull)
    os.mkfifo(folder / "b/pipe.txt")
    notes: list[str] = []
    files = list_files(files_source(folder / "**/*.txt"), notes.append)
    assert [file.name for file in files] == ["[j]/k.txt", "a.txt", "b/a.txt", "b/out/o.txt", "kept/i.txt", "é b/m.txt"]
    assert [file.name for file in list_files(files_source(folder / "[j]/*.txt"))] == ["k.txt"]  # as it is written
    assert notes == [
        "files of s: left out: 0, 1, b/c/up, b/up, z: a link to a folder that is read already or lies above",
        "files of s: left out: b/pipe.txt, null.txt: a pipe, a socket or a device is not read",
        "files of s: left out: s.txt: cannot be read: Too many levels of symbolic links",
        f"files of s: left out: .f/g.txt, b/c/.e.txt: {HIDDEN}",
    ]


@pytest.mark.parametrize(
    ("written", "found", "links"),
    [
        ("real/" + "l*/" * 6 + "*.txt", "real/" + "l0/" * 6 + "a.txt", 19 * 6),
        ("*/a.txt", "real/a.txt", 1),
        ("*/l*/*.txt", "real/l0/a.txt", 20),
        ("*/l*/**/*.txt", "real/l0/a.txt", 40),
    ],
)
def test_each_part_of_a_glob_follows_links_once(
    written: str, found: str, links: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Six levels of twenty links each were 20^6 paths."""
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "real/a.txt", "")
    (tmp_path / "0").symlink_to("real")
    for number in range(20):
        (tmp_path / f"real/l{number}").symlink_to(".")
    notes: list[str] = []
    assert [file.url.removeprefix("./") for file in list_files(files_source(*written.split()), notes.append)] == [found]
    assert f" and {links - 1} more (" in notes[0] if links > 5 else notes[0].count(", ") == links - 1


def test_what_cannot_be_read_is_said():
    codecs.lookup("utf-8-sig")  # Python's library may be unreadable to another user
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        shut = [f"{name}/a/b", f"{name}/a/c/1.txt", f"{name}/d"]
        for path in (f"{name}/a/b/1.txt", shut[1], f"{name}/d/1.txt"):
            write_file(Path(path), "Some text.")
        user, left_out, notes = os.geteuid(), dict[str, str](), list[str]()
        for path in shut:
            os.chmod(path, 0)
        os.seteuid(user or 65534)
        try:
            list_files(files_source(f"{name}/a/**/*.txt", f"{name}/*/*.txt"), notes.append)
            survey([name], left_out)
        finally:
            os.seteuid(user)
            for path in shut:
                os.chmod(path, 0o700)
    assert notes == ["files of s: left out: ../../d, ../b: cannot be read: Permission denied"]
    deep = "n" + "/n" * 3000
    assert not [*find_paths(f"{deep}/**/*", left_out)]
    denied = dict.fromkeys(shut, "cannot be read: Permission denied")
    assert left_out == denied | {deep: "cannot be read: File name too long"}


def test_what_the_recipe_excludes_is_neither_read_nor_said(folder: Path):
    notes: list[str] = []
    (folder / "b/dead.txt").symlink_to("absent")
    excluded = [f"{folder}/b/c/.e.txt", f"{folder}/**/[ab].*", f"{folder}/b/dead.txt"]
    files = list_files(files_source(folder / "**/*.txt", folder / ".f/**/*", exclude=excluded), notes.append)
    assert [file.name for file in files] == [".f/g.txt", ".f/h/i.txt", "[j]/k.txt", "é b/m.txt"]
    assert notes == []

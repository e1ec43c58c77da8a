"""What is no text of a source: test splits in six layouts and more, companions, folders of other programs."""

import json
from pathlib import Path

import pytest

from pipeline.sources.base import SourceError
from pipeline.sources.files import list_files
from shards.audit.split_names import find_splits
from tests.support.builds import call_here
from tests.support.reading import files_source
from tests.support.recipes import source, write_file, write_recipe

LAYOUTS = {
    "one file a split": "train.jsonl train.txt contest.jsonl latest.txt my_test.txt x/Train.csv x/Turing_test.csv | "
    "test.jsonl dev.jsonl my_test.jsonl unit.test.jsonl squad-validation.jsonl",
    "shards": "data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet | data/test-00000-of-00001.parquet "
    "data/validation-00000-of-00001-a09b74b3ef9c3b56.parquet",
    "a word inside": "wiki.train.tokens ARC-Easy-Train.jsonl | wiki.valid.tokens ARC-Easy-Dev.jsonl",
    "one word": "TrainData.jsonl train.csv | TestData.jsonl testset.csv evalset.csv validating.csv",
    "versions": "train-v2.0.json train.tsv | dev-v2.0.json test_matched.tsv",
    "folders": "en/train/a.txt de/training/b.md | en/validation/a.txt de/held-out/b.md",
    "partitions": "split=train/0.parquet | split=test/0.parquet",
    "saved": "s/train/a.txt s/rest/a.txt s/dataset_dict.json | s/eval_hard/a.txt",
    "alone": "rows.csv | Test.csv.gz x/split=dev/0.csv holdout.jsonl",
    "none": "testimony.txt latest/a.txt contest.csv tests/a.txt train/eval.py evaluation/a.py eval.py train.py "
    "test.html train.html test.txt |",
}
"""Files that are read, and after the bar those that are not."""


def write_tree(folder: Path, names: str) -> None:
    for name in names.split():
        write_file(folder / name, f"This is {name}.\n" * 20)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_text_of_a_split_is_read(layout: str, tmp_path: Path):
    """By text; a file that is named itself is read, and so are the items of an evaluation set."""
    train, _, held = LAYOUTS[layout].partition("|")
    write_tree(tmp_path, f"{train} {held}")
    said: list[str] = []
    source = files_source(tmp_path / "**/*")
    texts = {Path(file.url).read_text() for file in list_files(source, said.append)}
    assert texts == {f"This is {name}.\n" * 20 for name in train.split()}
    assert [line for line in said if "a test or validation split; to read it" not in line] == []
    assert sum(name.rpartition("/")[2] in line for line in said for name in held.split()) == len(held.split())
    assert len(list_files(source, with_splits=True)) == len(f"{train} {held}".split())
    for name in held.split():
        for spelled in (name, f"{name}*"):
            assert [file.url for file in list_files(files_source(tmp_path / spelled))] == [str(tmp_path / name)]


def test_a_name_of_several_words_is_no_prefix():
    assert not find_splits(["turing test.csv", "train.csv"])


def test_what_other_programs_write_is_left_out_and_said(tmp_path: Path):
    write_tree(tmp_path, "a.txt a.txt~ #a.txt# a.txt.bak a.orig b/Thumbs.db b/~$d.docx ~ a~b.txt")
    write_tree(tmp_path, "set/manifest.json set/tokenizer.json set/deep/c.txt saved/one.arrow saved/cache-1.arrow")
    (tmp_path / "saved/state.json").write_text(json.dumps({"_data_files": [{"filename": "one.arrow"}]}))
    said: list[str] = []
    (tmp_path / "up").symlink_to("..")
    (tmp_path / "root").symlink_to("/")
    files = list_files(files_source(tmp_path / "**/*"), said.append)
    assert [file.name for file in files] == ["a.orig", "a.txt", "a~b.txt", "saved/one.arrow", "~"]
    assert said == [
        "files of s: left out: root, up: a link to a folder that is read already or lies above",
        "files of s: left out: set/deep/c.txt, set/manifest.json, set/tokenizer.json: a shard set",
        "files of s: left out: #a.txt#, a.txt.bak, a.txt~, b/Thumbs.db, b/~$d.docx: an editor's backup, or written by "
        "the system",
        "files of s: left out: saved/cache-1.arrow, saved/state.json: beside the rows that `datasets` saved",
    ]
    (tmp_path / "saved/state.json").write_text('{"_data_files":' + "[" * 99_999)
    assert len(list_files(files_source(tmp_path / "saved/*"))) == 3
    for name in ("../a.txt", f"{tmp_path}/a.txt", "link.arrow"):
        (tmp_path / "saved/state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        (tmp_path / "saved/link.arrow").unlink(missing_ok=True)
        (tmp_path / "saved/link.arrow").symlink_to("../a.txt")
        for glob in ("saved", "saved/*.arrow", "**/*.arrow"):
            with pytest.raises(SourceError, match="which is not a file of its folder"):
                list_files(files_source(tmp_path / glob))


def test_equal_faults_are_one_line(tmp_path: Path):
    (tmp_path / "data").mkdir()
    for number in range(5000):
        (tmp_path / f"data/{number:04}.parquet").write_text("version https://git-lfs.github.com/spec/v1\noid")
    write_recipe(tmp_path / "r.toml", source("s", "data/*"), mix={"tokens": 9})
    for command in ("plan r.toml", "build r.toml --out out"):
        (line,) = call_here(*command.split(), cwd=tmp_path).stderr.splitlines()
        assert line.startswith("error: source 's': 0000.parquet: holds a pointer of Git LFS: fetch the file")
        assert line.endswith(" 0001.parquet and 4,998 more (**/*.parquet).")

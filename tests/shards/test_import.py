"""Import: nanoGPT's and llm.c's files into sets that validate, what is refused, and what repeats become."""

import hashlib
import itertools
import json
import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import shards
from shards.audit.audit import audit
from shards.convert.export import export_set
from shards.convert.import_ import bin_files, imported_documents
from shards.convert.import_.import_set import ImportOptions, import_set
from shards.convert.import_.shards import cut_shards
from shards.errors import InputError
from shards.format.tokenizer_json import byte_characters
from shards.format.vocabulary import read_vocabulary
from shards.validation.validate import validate
from tokenmill.__main__ import main

EOS = 298


@pytest.fixture
def tokenizer_file(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_str())
    return path


@pytest.fixture
def run(tmp_path, tokenizer_file):
    """Return a function that imports lists of ids as uint16 files; the set is `tmp_path/set`."""

    def run_import(train, val=(), *, out="set", dtype="<u2", tokenizer=tokenizer_file, **options):
        files = {}
        for split, bins in (("train", train), ("val", val)):
            files[split] = [tmp_path / f"{split}-{index}.bin" for index in range(len(bins))]
            for path, ids in zip(files[split], bins, strict=True):
                path.write_bytes(ids if isinstance(ids, bytes) else np.array(ids, dtype).tobytes())
        return import_set(files, tokenizer=tokenizer, out=tmp_path / out, options=ImportOptions("old", **options))

    return run_import


def read_documents(shard_set, split):
    """Return a split's documents as lists of ids, and their table's rows."""
    found, rows = [], []
    for shard in shard_set.splits[split]:
        tokens, table = shard.read().tolist(), shard.documents().to_pylist()
        found += [tokens[row["start"] : row["start"] + row["length"]] for row in table]
        rows += table
    return found, rows


def headed(ids, magic=20240520, version=1, dtype="<u2", count=None):
    """Return a file as llm.c writes it."""
    header = struct.pack("<3i", magic, version, len(ids) if count is None else count).ljust(1024, b"\0")
    return header + np.array(ids, dtype).tobytes()


@pytest.mark.parametrize("name", ["nanogpt", "llmc"])
def test_an_export_comes_back(good_set, plan, tmp_path, monkeypatch, name):
    """Tokens, boundaries and content hashes are those of the set that was exported; validation finds nothing."""
    monkeypatch.setattr(bin_files, "IMPORT_BLOCK_TOKENS", 5000)
    monkeypatch.setattr(imported_documents, "HASHED_TOKENS", 2000)
    out = tmp_path / "out"
    export_set(shards.open_set(good_set), out, layout=name)
    files = {split: sorted(out.glob(f"{split}*.bin")) for split in ("train", "val")}
    options = ImportOptions("old", shard_tokens=260_000)
    seen = []
    import_set(
        files,
        tokenizer=out / "tokenizer.json",
        out=tmp_path / "set",
        options=options,
        progress=lambda done, total: seen.append((done, total)),
    )
    report = validate(tmp_path / "set", level="full")
    assert report.problems == []
    shard_set = shards.open_set(tmp_path / "set")
    assert len(shard_set.splits["train"]) == 5
    assert seen[-1][0] == seen[-1][1] == 3 * report.tokens
    for split, group in plan.documents.items():
        expected = [document for shard in group for document in shard]
        found, rows = read_documents(shard_set, split)
        assert found == [document.tokens.tolist() for document in expected]
        assert [row["hash"] for row in rows] == [document.hash for document in expected]
        if name == "nanogpt":
            digest = hashlib.sha256(files[split][0].read_bytes()).hexdigest()
            assert {row["unit"] for row in rows} == {f"{split}.bin@{digest[:16]}"}
            assert [row["row"] for row in rows] == list(range(len(rows)))


def test_what_the_set_says_of_itself(run, tmp_path, tokenizer_file):
    run([[5, 6, EOS, 7, EOS]], [[8, EOS]])
    manifest = shards.open_set(tmp_path / "set").manifest
    assert (manifest.name, manifest.dtype, manifest.vocab_size) == ("old", "uint16", 300)
    assert manifest.tokenizer.eos_id == EOS
    assert manifest.tokenizer.special_tokens == {"<|endoftext|>": 298, "<|pad|>": 299}
    assert (tmp_path / "set/tokenizer.json").read_bytes() == tokenizer_file.read_bytes()
    (source,) = manifest.sources
    assert (source.name, source.tokens_available, source.documents_available, source.epochs) == ("imported", 7, 3, 1)
    recipe = json.loads((tmp_path / "set/recipe.json").read_text())
    (described,) = recipe["sources"]
    assert (described["name"], described["kind"]) == ("imported", "bin")
    train = next(file for file in described["files"] if file["split"] == "train")
    digest = hashlib.sha256((tmp_path / "train-0.bin").read_bytes()).hexdigest()
    assert train == {
        "file": "train-0.bin",
        "split": "train",
        "dtype": "uint16",
        "header": "none",
        "tokens": 5,
        "sha256": digest,
        "eos_at": "end",
    }
    assert str(tmp_path) not in (tmp_path / "set/recipe.json").read_text()
    assert validate(tmp_path / "set", level="full").problems == []
    assert validate(tmp_path / "set", against_sources=2).not_run


def test_hash_is_of_the_text(run, tmp_path, tokenizer, tokenizer_file):
    text = "naïve 🙂 déjà-vu"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    run([[*ids, EOS]])
    _, (row,) = read_documents(shards.open_set(tmp_path / "set"), "train")
    assert read_vocabulary(tokenizer_file).decode(ids) == text.encode()
    assert row["hash"] == xxhash.xxh3_128_digest(text.encode())


def test_eos_before_documents_that_files_cut(run, tmp_path):
    """As llm.c's scripts write: EOS first, and a document that goes on in the next file."""
    found = run([headed([EOS, 1, 2, EOS, 3]), headed([4, EOS, EOS, 5, EOS]), headed([9])], [headed([EOS, 6])])
    assert {split: part.eos_at for split, part in found.splits.items()} == {"train": "start", "val": "start"}
    shard_set = shards.open_set(tmp_path / "set")
    ids, rows = read_documents(shard_set, "train")
    assert ids == [[1, 2, EOS], [3, 4, EOS], [EOS], [5, EOS], [9, EOS]]
    assert [(row["unit"].split("@")[0], row["row"]) for row in rows] == [
        ("train-0.bin", 0),
        ("train-0.bin", 1),
        ("train-1.bin", 0),
        ("train-1.bin", 1),
        ("train-2.bin", 0),
    ]
    assert read_documents(shard_set, "val")[0] == [[6, EOS]]
    assert validate(tmp_path / "set", level="full").problems == []


def test_documents_that_do_not_end(run, tmp_path):
    with pytest.raises(InputError, match=r"train-0.bin: there is no EOS \(298\); the last document does not end"):
        run([[1, 2, 3]])
    with pytest.raises(InputError, match="the last EOS is token 1 of 3"):
        run([[1, EOS, 2]])
    assert not (tmp_path / "set").exists()
    assert run([[1, 2, 3]], close=True).splits["train"].closed
    assert read_documents(shards.open_set(tmp_path / "set"), "train")[0] == [[1, 2, 3, EOS]]
    run([[1, EOS, 2]], close=True, out="second")
    assert read_documents(shards.open_set(tmp_path / "second"), "train")[0] == [[1, EOS], [2, EOS]]
    assert not run([[1, EOS]], close=True, out="third").splits["train"].closed
    for name in ("set", "second", "third"):
        assert validate(tmp_path / name, level="full").problems == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no tokens"),
        (b"\1\0\2", "3 bytes are not a whole number of uint16"),
        (np.array([1, 300, EOS], "<u2").tobytes(), "token 1 is 300; expected less than the tokenizer's 300"),
        (np.array([1, 2, 3, EOS] * 4, "<u4").tobytes(), "every other number is 0, as in a file of uint32"),
        (headed([1, 2, EOS], count=4), "1030 bytes; its header says 4 tokens, 1032 bytes"),
        (headed([1, 2, EOS], count=2), "1030 bytes; its header says 2 tokens"),
        (headed([], count=0), "has no tokens"),
    ],
)
def test_files_that_cannot_be_used(run, tmp_path, data, message):
    with pytest.raises(InputError, match=message):
        run([data])
    assert not list(tmp_path.glob("*set*"))


def test_uint32(run, tmp_path):
    """Without a header by the vocabulary or the flag, with llm.c's header for Llama 3 by itself."""
    alphabet = list(byte_characters())
    texts = [*alphabet, *("".join(pair) for pair in itertools.product(alphabet, repeat=2))]
    wide = tmp_path / "wide.json"
    eos = len(texts)
    added = [{"id": eos, "content": "<|end_of_text|>", "special": True}]
    wide.write_text(json.dumps({"model": {"vocab": {t: i for i, t in enumerate(texts)}}, "added_tokens": added}))
    ids = [65_536, 1, eos, 2, eos]
    run([ids], dtype="<u4", tokenizer=wide)
    run([headed(ids, 20240801, 7, "<u4")], out="headed", tokenizer=wide)
    files = {"train": [tmp_path / "narrow.bin"]}
    files["train"][0].write_bytes(np.array([1, 2, EOS], "<u4").tobytes())
    options = ImportOptions("old", dtype="uint32")
    import_set(files, tokenizer=tmp_path / "tokenizer.json", out=tmp_path / "narrow", options=options)
    assert shards.open_set(tmp_path / "narrow").dtype == np.uint16
    assert read_documents(shards.open_set(tmp_path / "narrow"), "train")[0] == [[1, 2, EOS]]
    for name in ("set", "headed"):
        shard_set = shards.open_set(tmp_path / name)
        assert shard_set.dtype == np.uint32
        assert read_documents(shard_set, "train")[0] == [[65_536, 1, eos], [2, eos]]
        assert validate(tmp_path / name, level="full").problems == []


def test_eos_is_the_tokenizers_or_given(run, tmp_path, tokenizer):
    run([[1, 299, 2, 299]], eos_id=299)
    assert read_documents(shards.open_set(tmp_path / "set"), "train")[0] == [[1, 299], [2, 299]]
    with pytest.raises(InputError, match="--eos 7 is not a special token"):
        run([[1, 7]], eos_id=7, out="other")
    other = json.loads(tokenizer.to_str())
    for text in ("<|stop|>", "</s>"):
        other["added_tokens"][0]["content"] = text
        other["added_tokens"][1]["content"] = "<eos>" if text == "</s>" else "<|pad|>"
        (tmp_path / "other.json").write_text(json.dumps(other))
        with pytest.raises(InputError, match="which id ends a document"):
            run([[1, EOS]], tokenizer=tmp_path / "other.json", out="other")


def test_repeats_are_kept_and_validation_names_them(run, tmp_path):
    found = run([[1, EOS, 2, EOS, 1, EOS, 1, EOS, 3, EOS, 4, EOS]], [[3, EOS, 5, EOS, 5, EOS]])
    repeats = found.repeats
    assert (repeats.in_train, repeats.in_val, repeats.leaked, repeats.epochs, found.epochs) == (2, 1, 1, 3, 1)
    assert found.kept == {"train": (12, 6), "val": (6, 3)}
    problems = validate(tmp_path / "set", level="full").problems
    named = {(problem.kind, problem.message.split(" occurs ")[1].split(" (")[0]) for problem in problems}
    assert named == {
        ("split_leak", "1 time in val and 1 in train"),
        ("document_repeated", "2 times in val and 0 in train"),
        ("document_repeated", "0 times in val and 3 in train"),
    }


@pytest.mark.parametrize("repeats", ["keep", "allow"])
@pytest.mark.parametrize("val", [[], [[3, EOS, 5, EOS, 5, EOS]], [[1, EOS, 2, EOS, 1, EOS, 4, 4, EOS]]])
def test_what_is_kept_can_be_audited_and_adds_up(run, tmp_path, val, repeats):
    """Whatever repeats what: the quick level finds nothing, and the audit judges what it does not refuse."""
    run([[1, EOS, 2, EOS, 1, EOS, 1, EOS, 4, 4, EOS, 4, 4, EOS]], val, repeats=repeats)
    assert validate(tmp_path / "set").problems == []
    check = audit(tmp_path / "set").check("repeated_documents")
    assert check.verdict == ("ok" if repeats == "allow" and not val else "bad")
    assert bool(check.findings) == bool(validate(tmp_path / "set", level="full").problems)


@pytest.mark.parametrize("times", [2, 12])
def test_a_split_that_is_copies_of_itself_is_found(good_set, tmp_path, times):
    """All documents of real text, over and over in one file; nobody asked for that."""
    export_set(shards.open_set(good_set), tmp_path / "out", layout="nanogpt")
    once = (tmp_path / "out/train.bin").read_bytes()
    (tmp_path / "copies.bin").write_bytes(once * times)
    import_set(
        {"train": [tmp_path / "copies.bin"], "val": [tmp_path / "out/val.bin"]},
        tokenizer=tmp_path / "out/tokenizer.json",
        out=tmp_path / "set",
        options=ImportOptions("old"),
    )
    documents = shards.open_set(good_set).manifest.splits["train"].documents
    report = audit(tmp_path / "set")
    check = report.check("repeated_documents")
    assert (report.verdict, check.verdict) == ("bad", "bad")
    assert check.findings[-1].values["message"].startswith(f"{documents:,} documents in all are repeated")
    problems = validate(tmp_path / "set", level="full").problems
    assert {problem.kind for problem in problems} == {"document_repeated"}
    assert f"0 times in val and {times} in train" in problems[0].message


def test_repeats_in_training_that_were_meant_are_epochs(run, tmp_path):
    found = run([[1, EOS, 2, EOS, 1, EOS, 1, EOS]], repeats="allow")
    (source,) = shards.open_set(tmp_path / "set").manifest.sources
    assert (source.epochs, source.documents_available, source.tokens_available) == (3, 2, 4)
    assert found.epochs == 3
    assert json.loads((tmp_path / "set/recipe.json").read_text())["sources"][0]["repeats"] == "allow"
    assert validate(tmp_path / "set", level="full").problems == []
    check = audit(tmp_path / "set").check("repeated_documents")
    assert (check.verdict, check.summary) == (
        "ok",
        "no document occurs more often than its source's epochs allow (imported up to 3 times); "
        "no validation document is equal to a training document",
    )


def test_repeats_are_dropped_and_counted(run, tmp_path, monkeypatch):
    monkeypatch.setattr(bin_files, "IMPORT_BLOCK_TOKENS", 3)
    train = [[1, EOS, 2, EOS, 1, EOS, 1, EOS, 3, EOS, 4, 4, 4, 4, EOS, 6, EOS]]
    run(train, [[3, EOS, 5, EOS, 5, EOS]], repeats="drop", shard_tokens=4)
    shard_set = shards.open_set(tmp_path / "set")
    ids, rows = read_documents(shard_set, "train")
    assert ids == [[1, EOS], [2, EOS], [4, 4, 4, 4, EOS], [6, EOS]]
    assert [row["row"] for row in rows] == [0, 1, 5, 6]
    assert read_documents(shard_set, "val")[0] == [[3, EOS], [5, EOS]]
    (source,) = shard_set.manifest.sources
    assert (source.dropped, source.epochs, source.documents_available) == ({"duplicate": 4}, 1, 6)
    assert validate(tmp_path / "set", level="full").problems == []
    with pytest.raises(InputError, match="every training document is also in validation"):
        run([[1, EOS]], [[1, EOS]], repeats="drop", out="none")


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 200))
def test_shards_are_near_their_targets_and_never_empty(lengths, shard_tokens):
    ends = np.cumsum(lengths)
    cuts = cut_shards(ends, shard_tokens)
    assert cuts[-1] == len(lengths)
    sizes = np.diff(ends[np.array(cuts) - 1], prepend=0)
    assert (sizes > 0).all()
    assert (np.abs(sizes - ends[-1] / len(cuts)) <= max(lengths) + 2).all()


def test_equal_files_give_equal_sets(run, tmp_path):
    for out in ("set", "again"):
        run([[1, 2, EOS, 3, EOS]], [[4, EOS]], out=out)
    names = sorted(path.name for path in (tmp_path / "set").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        assert (tmp_path / "set" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_command(run, tmp_path, tokenizer_file, capsys):
    (tmp_path / "a.bin").write_bytes(headed([EOS, 1, EOS, 1]))
    (tmp_path / "v.bin").write_bytes(np.array([2, EOS, 2, EOS], "<u2").tobytes())
    arguments = ["import", str(tmp_path / "a.bin"), "--split-val", str(tmp_path / "v.bin")]
    arguments += ["--tokenizer", str(tokenizer_file), "--out", str(tmp_path / "set")]
    assert main([*arguments, "--eos", "298", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["splits"]["train"] == {"tokens": 4, "documents": 2, "eos_at": "start", "closed": False}
    assert report["repeats"] == {"in_val": 1, "in_train": 1, "train_in_val": 0}
    assert report["epochs"] == 1
    assert shards.open_set(tmp_path / "set").manifest.name == "set"
    assert main(arguments) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    arguments[-1] = str(tmp_path / "dropped")
    assert main([*arguments, "--repeats", "drop"]) == 0
    text = capsys.readouterr().out
    assert "train: EOS was before each document; it is now after it" in text
    assert "repeats: 1 document of train, 1 of val, 0 of train that are in val too; left out" in text
    arguments[-1] = str(tmp_path / "allowed")
    assert main([*arguments, "--repeats", "allow"]) == 0
    assert "training documents occur up to 2 times: allowed" in capsys.readouterr().out
    arguments[-1] = str(tmp_path / "none")
    assert main([*arguments, "--eos", "5"]) == 2
    assert "error: --eos 5 is not a special token" in capsys.readouterr().err

"""`trace --hash`: where a document is in a set; and for each way out of it, why it is not there."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pipeline
import shards
from pipeline.builder.stored_build import BUILD_FILE
from pipeline.engine.checksums import seal, unseal
from pipeline.recipe.presets import PRESETS
from shards.errors import InputError
from shards.format.content_hash import hash_document
from tests.support.builds import call_here, hashes_in, one_worker, real_documents
from tests.support.cleaned_recipe import language_model
from tests.support.near_duplicates import change
from tokenmill.__main__ import main

MODEL = language_model()
assert MODEL is not None

ITEM = "The treasurer of a small town library counts nine hundred borrowed atlases and returns exactly forty of them."
LONG_WORDS = "supercalifragilisticexpialidocious-" * 400
BAD_TWICE = "incomprehensibilities antidisestablishmentarianism"
RECIPE = """
name = "ways"
seed = 3
drop_hashes = ["block.txt"]
drop_if_matches = ["CONFIDENTIAL"]

[[sources]]
name = "web"
paths = ["web.jsonl"]
weight = 70
keep = { score = ">= 2" }
min_bytes = 40
max_malformed = 0.1
[sources.clean.gopher]
min_words = 6
max_mean_word_chars = 12
OTHERS
[sources.clean.personal_data]
kinds = ["email"]

[[sources]]
name = "forum"
paths = ["forum.jsonl"]
weight = 15
[sources.clean.gopher]
when = "encode"
max_words = 200
max_mean_word_chars = 10
OTHERS
[sources.clean.personal_data]
action = "drop"
kinds = ["email"]
max_dropped = 1.0
[sources.clean.language]
model = "lid.ftz"
keep = ["en"]
min_score = 0.02
max_dropped = 1.0
[[sources.clean.datatrove]]
filter = "RegexFilter"
arguments = { regex_exp = "forbidden fruit" }
max_dropped = 1.0

[[sources]]
name = "spare"
paths = ["spare.jsonl"]
weight = 15

[clean.near_duplicates]
action = "drop"
max_dropped = 1.0

[[evaluations]]
name = "exam"
paths = ["exam.jsonl"]
action = "drop"
max_dropped = 1.0

[tokenizer]
vocab_size = 500

[mix]
tokens = 30_000
[split]
val_tokens = 3_000
[shards]
tokens = 12_000
"""


def sentences(count: int, first: int) -> list[str]:
    """Return documents of real prose of 60 words."""
    words = " ".join(real_documents()).split()
    return [" ".join(words[start : start + 60]) for start in range(first * 60, (first + count) * 60, 60)]


def turn_off_others(recipe: str) -> str:
    """Return the recipe with all other limits of its two presets off."""
    for own in ({"min_words", "max_mean_word_chars"}, {"max_words", "max_mean_word_chars"}):
        off = [f'{key} = "off"' for key in PRESETS["gopher"].limit_keys() if key not in own]
        recipe = recipe.replace("OTHERS", "\n".join(["max_dropped = 1.0", *off]), 1)
    return recipe


def write(path: Path, documents: list[tuple[str, int]]) -> None:
    lines = [json.dumps({"text": text, "score": score}) for text, score in documents]
    path.write_text("".join(f"{line}\n" for line in lines))


@dataclass(frozen=True)
class Built:
    """A set of which documents were lost in every way, and these documents."""

    folder: Path
    texts: dict[str, str]

    def ask(self, *options: str, expect: int = 0) -> dict[str, Any]:
        """Run `trace --json` on the set."""
        return trace(self.folder / "set", *options, "--json", expect=expect)

    def hash_of(self, name: str) -> str:
        return hash_document(self.texts[name].encode()).hex()

    def file_of(self, name: str) -> str:
        return str(self.folder / f"{name}.txt")

    def say(self, *options: str) -> str:
        """Run `trace` on the set, and return what it prints in one line."""
        return " ".join(trace(self.folder / "set", *options)["stdout"].split())


def trace(place: Path, *options: str, expect: int = 0) -> dict[str, Any]:
    done = call_here(main, *one_worker("trace", place, *options))
    assert done.returncode == expect, done.stderr + done.stdout
    result = json.loads(done.stdout) if "--json" in options else {"stdout": done.stdout}
    return result | {"stderr": done.stderr}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("ways")
    web, forum, spare = sentences(420, 0), sentences(120, 420), sentences(300, 540)
    texts = {
        "own copy": web[11],
        "shared": web[12],
        "listed": web[13],
        "falls twice": BAD_TWICE,
        "near": change(web[14] + " " + web[15], 0.93, random.Random(1)),
        "original": web[14] + " " + web[15] + " " + web[16],
        "exam": f"{web[17]} {ITEM} {web[18]}",
        "low score": web[19] + " low",
        "short": "Too short.",
        "matched": web[20] + " CONFIDENTIAL",
        "masked": web[21] + " Write to anna.berg@gmail.com today.",
        "mailed": forum[1] + " Write to anna.berg@gmail.com today.",
        "long": " ".join([forum[2], *sentences(12, 700), LONG_WORDS]),
        "filtered": forum[3] + " forbidden fruit",
        "german": "Der schnelle braune Fuchs springt über den faulen Hund, und viele Tiere sehen ihm dabei zu.",
        "unknown": "Nobody has ever written this sentence about purple hydrants in any of the three sources.",
    }
    near = texts["original"] + " " + web[22]
    texts["near"], texts["original"] = (
        change(near, 0.93, random.Random(1)),
        near + " and so on until the very end of the page, where nothing else stands",
    )
    web_rows = [(text, 3) for text in web]
    names = ("own copy", "falls twice", "near", "original", "exam", "short", "matched", "masked")
    web_rows += [(texts[name], 3) for name in names] + [(texts["low score"], 1)]
    write(folder / "web.jsonl", web_rows)
    with (folder / "web.jsonl").open("a") as file:
        file.write("{broken\n")
    forum += [texts[name] for name in ("mailed", "long", "filtered", "german", "shared")]
    write(folder / "forum.jsonl", [(text, 0) for text in forum])
    write(folder / "spare.jsonl", [(text, 0) for text in spare])
    write(folder / "exam.jsonl", [(ITEM, 0)])
    (folder / "lid.ftz").write_bytes(MODEL.read_bytes())
    (folder / "block.txt").write_text(hash_document(texts["listed"].encode()).hex() + "\n")
    (folder / "recipe.toml").write_text(turn_off_others(RECIPE))
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text.encode())
    pipeline.build_set(folder / "recipe.toml", out=folder / "set", workers=1, validate="quick")
    built = Built(folder, texts)
    held = hashes_in(built.folder / "set")
    texts["kept"] = next(text for text in web if hash_document(text.encode()).hex() in held)
    (folder / "kept.txt").write_bytes(texts["kept"].encode())
    return built


NEAR_DUPLICATE = r".*similarity (0\.\d{4})\) .*'web': .* row 423, hash (.*)"


def only_copy(answer: dict[str, Any]) -> dict[str, Any]:
    (copy,) = answer["build"]["copies"]
    return copy


def test_every_document_of_the_set_is_where_the_work_folder_says(built: Built) -> None:
    for shard in shards.open_set(built.folder / "set").shards:
        for value in shard.documents(["hash"])["hash"].to_pylist()[:8]:
            answer = built.ask("--hash", value.hex(), "--work", str(built.folder / "set.work"))
            states = {tuple(copy["shards"]) for copy in answer["build"]["copies"] if copy["state"] == "in the set"}
            assert states == {(shard.name,)}, "and in no other shard"
            assert answer["build"]["answer"] == "in the set"


def test_copies(built: Built) -> None:
    own = built.ask("--hash", built.hash_of("own copy"), "--work", str(built.folder / "set.work"))["build"]["copies"]
    assert [copy["row"] for copy in own] == [11, 420]
    assert own[0]["state"] == "in the set" or own[0]["reasons"][0]["step"] == "budget"
    assert own[1]["state"] == "dropped"
    (reason,) = own[1]["reasons"]
    assert reason["step"] == "duplicate"
    assert reason["text"].endswith(" row 11")
    shared = built.ask("--hash", built.hash_of("shared"), "--work", str(built.folder / "set.work"))["build"]["copies"]
    assert [(copy["source"], copy["state"] == "dropped") for copy in shared] == [("web", False), ("forum", True)]
    assert "an earlier document of the source 'web': web.jsonl@" in shared[1]["reasons"][0]["text"]


def test_what_the_mix_drops(built: Built) -> None:
    said = built.say("--hash", built.hash_of("falls twice"))
    assert "dropped gopher: min_words: words is 2, limit 6" in said
    assert "max_mean_word_chars: mean_word_chars is 24.5, limit 12" in said
    for name, step, pattern in (
        ("listed", "block_list", r"its hash is in the block list block\.txt()()"),
        ("near", "near_duplicate", NEAR_DUPLICATE),
        ("exam", "evaluations", r".* set 'exam': .* row 0, 100% of its words in bytes ([\d,]+) to ([\d,]+) of .*"),
    ):
        answer = built.ask("--hash", built.hash_of(name))
        (reason,) = only_copy(answer)["reasons"]
        assert (answer["in_set"], answer["build"]["answer"], reason["step"]) == (False, "dropped", step)
        found = re.fullmatch(pattern, reason["text"])
        assert found
        if name == "near":
            assert 0.8 <= float(found[1]) < 1
            assert found[2] == built.hash_of("original")
        if name == "exam":
            start, stop = (int(digits.replace(",", "")) for digits in found.groups())
            assert built.texts["exam"].encode()[start:stop].decode() == ITEM.rstrip(".")


def test_beyond_the_budget(built: Built) -> None:
    held = hashes_in(built.folder / "set")
    spare = [json.loads(line)["text"] for line in (built.folder / "spare.jsonl").read_text().splitlines()]
    left = [digest for digest in (hash_document(text.encode()).hex() for text in spare) if digest not in held]
    assert len(left) > 20
    for digest in left[:3]:
        copy = only_copy(built.ask("--hash", digest))
        assert (copy["state"], copy["source"], copy["shards"]) == ("not taken", "spare", [])
        (reason,) = copy["reasons"]
        assert reason["step"] == "budget"
        found = re.search(r"takes ([\d,]+) training tokens .*, which has ([\d,]+)\. .* before (\w+)", reason["text"])
        assert found
        assert found[3] <= digest, "the cut comes before it"
        manifest = shards.open_set(built.folder / "set").manifest
        assert int(found[2].replace(",", "")) == manifest.sources[2].tokens_available
        assert int(found[1].replace(",", "")) == manifest.mix[2].requested_tokens


def test_a_hash_alone_does_not_tell_what_was_dropped_before_encoding(built: Built) -> None:
    for name in ("short", "mailed", "masked", "unknown"):
        answer = built.ask("--hash", built.hash_of(name))
        assert answer["build"]["answer"] == "unknown"
        dropped = answer["build"]["dropped_before_encoding"]
        assert dropped["web"]["malformed record"] == 1
        assert dropped["web"]["shorter than min_bytes"] == 1
        assert dropped["forum"]["personal data: email"] == 1
        assert answer["build"]["masked"] == {"email": 1}
    said = built.say("--hash", built.hash_of("short"))
    assert "A hash alone does not tell" in said
    assert "1 because malformed record" in said


WAYS = [
    ("short", "web", "shorter than min_bytes: it has 10 bytes, limit 40", "shorter than min_bytes"),
    ("matched", "web", "CONFIDENTIAL", "matches CONFIDENTIAL"),
    ("mailed", "forum", "personal data: email", "personal data: email"),
    ("long", "forum", "gopher: max_words: words is 781, limit 200", "gopher: max_words"),
    ("filtered", "forum", "RegexFilter", "RegexFilter"),
    ("german", "forum", "language: de", "language: de"),
]


@pytest.mark.parametrize(("name", "source", "words", "reason"), WAYS)
def test_a_text_tells_what_drops_it_before_encoding(
    built: Built, name: str, source: str, words: str, reason: str
) -> None:
    answer = built.ask("--document", built.file_of(name))["build"]
    tried = {entry["source"]: entry for entry in answer["tried"]}
    assert tried[source]["dropped"].startswith(reason)
    assert answer["answer"] == "would be dropped before encoding"
    assert words in built.say("--document", built.file_of(name))


def test_what_is_only_reported_and_a_build_that_stopped(built: Built) -> None:
    place = built.folder / "reported"
    reported = {"clean.near_duplicates.action": '"report"', "mix.tokens": '"max"', "mix.when_short": '"shrink"'}
    overrides = [f"{key}={value}" for key, value in reported.items()]
    evaluations = f'evaluations=[{{name="exam", paths=["{built.folder}/exam.jsonl"]}}]'
    recipe = built.folder / "recipe.toml"
    pipeline.build_set(recipe, out=place, overrides=[*overrides, evaluations], workers=1, validate="quick")
    for name, step in (("near", "near_duplicate"), ("exam", "evaluations")):
        answer = trace(place, "--hash", built.hash_of(name), "--work", f"{place}.work", "--json")["build"]
        (copy,) = answer["copies"]
        (note,) = copy["notes"]
        assert (copy["state"] in ("in the set", "not taken"), note["step"]) == (True, step)
        assert 'action = "report" keeps' in note["text"]
    with pytest.raises(InputError):
        pipeline.build_set(
            recipe, out=place, overrides=[*overrides[:1], evaluations, "mix.tokens=1_000_000"], workers=1
        )
    answer = trace(place, "--hash", built.hash_of("near"), "--work", f"{place}.work", "--json")["build"]
    assert not answer["of_this_set"]
    (reason,) = answer["copies"][0]["reasons"]
    assert (answer["answer"], reason["step"]) == ("not taken", "stopped")
    assert "the sources are too small" in reason["text"]


def test_masked_text_has_another_hash(built: Built) -> None:
    answer = built.ask("--document", built.file_of("masked"))["build"]
    (entry,) = [entry for entry in answer["tried"] if entry["source"] == "web"]
    assert entry["masked"] == {"email": 1}
    (copy,) = entry["copies"]
    assert copy["row"] == 427
    assert answer["answer"] == copy["state"]
    assert built.ask("--hash", entry["hash"])["in_set"] == (copy["state"] == "in the set")


def test_a_text_that_no_source_has(built: Built) -> None:
    tried = built.ask("--document", built.file_of("unknown"))["build"]
    assert tried["answer"] == "never seen"
    assert [entry["dropped"] for entry in tried["tried"]] == [None, None, None]
    assert built.say("--document", built.file_of("unknown")).count("has this text: cleaning keeps it") == 1


def test_a_source_that_was_read_whole_without_drops_is_told_for_certain(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [(text, 0) for text in sentences(40, 0)])
    old = {"name": "old", "paths": [f"{tmp_path}/old.txt"], "weight": 1, "format": "file", "encoding": "latin-1"}
    recipe = {
        "name": "plain",
        "sources": [{"name": "a", "paths": [f"{tmp_path}/a.jsonl"], "weight": 1}, old],
        "tokenizer": {"vocab_size": 300},
    }
    (tmp_path / "old.txt").write_bytes("Grüße aus der alten Zeit".encode("latin-1"))
    pipeline.build_set(recipe, out=tmp_path / "set", workers=1, validate="quick")
    assert trace(tmp_path / "set", "--hash", "ab" * 16, "--json")["build"]["answer"] == "never seen"
    shutil.copy(tmp_path / "old.txt", tmp_path / "copy.txt")
    told = trace(tmp_path / "set", "--document", str(tmp_path / "copy.txt"))["stdout"]
    for part in ("not valid UTF-8; above max_malformed = 0", "decoded from iso8859-1", "#file row 0: in the set"):
        assert part in told
    # The work folder of another build of the set: it says so.
    note = tmp_path / "set.work" / BUILD_FILE
    note.write_bytes(seal(unseal(note.read_bytes()) | {"manifest": "0"}))
    assert "did not make this set" in trace(tmp_path / "set", "--hash", "ab" * 16)["stdout"]
    # The build mends its note without a task.
    assert not pipeline.build_set(recipe, out=tmp_path / "set", workers=1).tasks_run
    assert trace(tmp_path / "set", "--hash", "ab" * 16, "--json")["build"]["of_this_set"]
    # A note that is damaged is no note of an earlier version, and is mended too.
    written = note.read_bytes()
    for damaged in (written.replace(b"<u2", b"<u4"), written[:20], b""):
        note.write_bytes(damaged)
        refused = trace(tmp_path / "set", "--hash", "ab" * 16, expect=1)["stderr"]
        assert f"{note}: differs from what was written. Run the build command again" in refused
    pipeline.build_set(recipe, out=tmp_path / "set", workers=1)
    assert note.read_bytes() == written
    # A run that was lost, and a folder without a build.
    for path in tmp_path.glob("set.work/encode/*/documents.npy"):
        path.unlink()
    assert "Run the build command again" in trace(tmp_path / "set", "--hash", "ab" * 16, expect=1)["stderr"]
    (tmp_path / "set.work").rename(tmp_path / "elsewhere")
    lost = trace(tmp_path / "set", "--hash", "ab" * 16)["stdout"]
    assert "give it with --work" in lost
    refused = trace(tmp_path / "set", "--hash", "ab" * 16, "--work", str(tmp_path), expect=2)
    assert "no build here has reached the mix" in refused["stderr"]


def test_of_a_file_that_a_source_lists_that_source_alone_is_asked(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [(text, 0) for text in sentences(40, 0)])
    for name, text in (("plain", "A page of old news"), ("sent", "Write to anna.berg@gmail.com or ben@gmail.com")):
        (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(text.encode()))
    rows = {"name": "a", "paths": [f"{tmp_path}/a.jsonl"], "weight": 1}
    mail = rows | {"name": "mail", "paths": [f"{tmp_path}/*.txt.gz"], "format": "file"}
    (tmp_path / "cut.txt").write_text("\n".join(sentences(40, 1)), encoding="utf-16")
    cut = rows | {"name": "cut", "paths": [f"{tmp_path}/cut.txt"], "separator": "\n", "encoding": "utf-16"}
    recipe = {"name": "mail", "sources": [rows, mail, cut], "clean": {"personal_data": {}}}
    recipe |= {"tokenizer": {"vocab_size": 300}}
    pipeline.build_set(recipe, out=tmp_path / "set", workers=1, validate="quick")
    assert "# train-00000 document" in trace(tmp_path / "set", "--document", f"{tmp_path}/plain.txt.gz")["stdout"]
    first, *rest = trace(tmp_path / "set", "--document", f"{tmp_path}/sent.txt.gz")["stdout"].splitlines()
    assert re.fullmatch(r"in the set, changed before encoding; this text has the hash \w{32}", first)
    assert re.fullmatch(r"mail: this text: masked \(2 times email\), and then has the hash \w{32}", rest[0])
    assert re.fullmatch(r"  mail: sent.txt.gz@\w+#file row 0: in the set, train-00000", rest[1])
    assert len(rest) == 2
    for name, format_ in (("a.jsonl", "jsonl"), ("cut.txt", "text")):
        refused = trace(tmp_path / "set", "--document", f"{tmp_path}/{name}", expect=2)["stderr"]
        assert f"{name}: holds several documents ({format_}). Give a file with the text of one;" in refused
    (tmp_path / "photo.png").write_bytes(b"\xff")
    said = trace(tmp_path / "set", "--document", f"{tmp_path}/photo.png")["stdout"]
    assert "a, mail: this text would be dropped before encoding\n  text is not valid UTF-8" in said
    assert "cut: this text would be dropped before encoding\n  text is not valid utf-16" in said
    (tmp_path / "sent.txt.gz").write_bytes(b"no gzip")
    assert "zlib inflate" in trace(tmp_path / "set", "--document", f"{tmp_path}/sent.txt.gz", expect=2)["stderr"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hash", "0" * 33], "32 hexadecimal digits"),
        (["--document", "none.txt"], "No such file"),
        (["--text", "a", "--work", "b"], "goes with --hash"),
    ],
)
def test_what_cannot_be_asked(built: Built, options: list[str], words: str) -> None:
    assert words in trace(built.folder / "set", *options, expect=2)["stderr"]

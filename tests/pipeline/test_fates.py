"""What becomes of a document: one corpus in which everything happens, and each way of saying what did.

`FATES` has the planted documents, one for each reason of a drop. The counts of the manifest, `clean-report`, its page,
`trace` and the alarms of `plan` and `build` must each say the same of them.
"""

# pyright: basic

import gzip
import json
import random
import re
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pipeline
import shards
from pipeline.builder.stored_build import BUILD_FILE
from pipeline.engine.checksums import seal, unseal
from pipeline.recipe.presets import Gopher
from shards.errors import InputError
from shards.format.content_hash import hash_document
from tests.support.builds import build_here, call_here, hashes_in, real_documents
from tests.support.cleaned_recipe import language_model
from tests.support.near_duplicates import change
from tests.support.recipes import overrides, write_lines

MODEL = language_model()
assert MODEL is not None

ITEM = "The treasurer of a small town library counts nine hundred borrowed atlases and returns exactly forty of them."
RECIPE = """
name = "ways"
seed = 3
drop_hashes = ["block.txt"]
drop_if_matches = ["CONFIDENTIAL", "never there"]

[[sources]]
name = "web"
paths = ["web.jsonl"]
weight = 70
keep = { score = ">= 2" }
min_bytes = 40
max_bytes = 20_000
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
take = 0.9
[sources.clean.gopher]
when = "encode"
max_words = 200
max_mean_word_chars = 10
OTHERS
[sources.clean.personal_data]
action = "drop"
kinds = ["email"]
[sources.clean.language]
model = "lid.ftz"
keep = ["en"]
min_score = 0.02
[[sources.clean.datatrove]]
filter = "C4QualityFilter"
arguments = { filter_no_terminal_punct = false, min_num_sentences = -1, filter_curly_bracket = false }

[[sources]]
name = "spare"
paths = ["spare.jsonl"]
weight = 15

[clean.near_duplicates]
action = "drop"

[[evaluations]]
name = "exam"
paths = ["exam.jsonl"]
action = "drop"

[tokenizer]
vocab_size = 500

[mix]
tokens = 30_000
[split]
val_tokens = 3_000
[shards]
tokens = 12_000
"""
FATES: dict[str, tuple[str, str, str, str]] = {
    "listed": ("web", "in block list block.txt", "block_list", r"its hash is in the block list block\.txt"),
    "exam": ("web", "holds an item of exam", "evaluations", ".* set 'exam': .* row 0, 100% of its words in bytes .*"),
    "falls twice": ("web", "gopher: min_words", "limits", "gopher: min_words: words is 2, limit 6"),
    "own copy": ("web", "duplicate", "duplicate", "its text is that of an earlier document: web.jsonl@.* row 11"),
    "shared": ("forum", "duplicate of another source", "duplicate", ".* earlier .* of the source 'web': .* row 12"),
    "near": ("web", "near-duplicate", "near_duplicate", r".*similarity 0\.[89]\d*\) .*'web': .* row 423, hash .*"),
    "not taken": (
        "forum",
        "not taken: take = 0.9",
        "take",
        r"not taken: take = 0\.9 of the source 'forum', .* before e6+80+",
    ),
    "low score": ("web", "not score >= 2", "", ""),
    "absent": ("web", "text is null", "", ""),
    "empty": ("web", "text is empty", "", "text is empty"),
    "short": ("web", "shorter than min_bytes", "", "shorter than min_bytes: it has 10 bytes, limit 40"),
    "huge": ("web", "longer than max_bytes", "", "longer than max_bytes: it has 30,000 bytes, limit 20,000"),
    "matched": ("web", "matches CONFIDENTIAL", "", "matches CONFIDENTIAL"),
    "mailed": ("forum", "personal data: email", "", "personal data: email"),
    "long": ("forum", "gopher: max_words", "", "gopher: max_words: words is 781, limit 200"),
    "german": ("forum", "language: de", "", "language: de"),
    "filtered": ("forum", "C4QualityFilter: lorem_ipsum", "", "C4QualityFilter: lorem_ipsum"),
}
"""The source of each planted document, its reason in the counts, and what `trace` says: the code of a step of the mix,
and the sentence. Of two, only the counts tell."""
BOUNDS = {
    "matched": "sources.web.max_dropped",
    "mailed": "sources.forum.clean.personal_data.max_dropped",
    "long": "sources.forum.clean.gopher.max_dropped",
    "german": "sources.forum.clean.language.max_dropped",
    "falls twice": "sources.web.clean.gopher.max_dropped",
    "exam": "evaluations.exam.max_dropped",
    "near": "clean.near_duplicates.max_dropped",
}
"""The key that bounds the drops of a planted document; the last three are of the mix. Each is 0 once."""


def sentences(count: int, first: int) -> list[str]:
    """Return documents of real prose of 60 words."""
    words = " ".join(real_documents()).split()
    return [" ".join(words[start : start + 60]) for start in range(first * 60, (first + count) * 60, 60)]


def turn_off_others(recipe: str) -> str:
    """Return the recipe with all other limits of its two presets off."""
    for own in ({"min_words", "max_mean_word_chars"}, {"max_words", "max_mean_word_chars"}):
        off = [f'{key} = "off"' for key in Gopher.limit_keys() if key not in own]
        recipe = recipe.replace("OTHERS", "\n".join(off), 1)
    return recipe


def write(path: Path, documents: list[tuple[str | None, int]]) -> None:
    write_lines(path, ({"text": text, "score": score} for text, score in documents))


@dataclass(frozen=True)
class Built:
    """A set of which documents were lost in every way, and these documents."""

    folder: Path
    texts: dict[str, str]

    def ask(self, *options: str, place: str = "set") -> dict[str, Any]:
        """Run `trace --json` on the set, and return what the build says."""
        return trace(self.folder / place, *options, "--json")["build"]

    def hash_of(self, name: str) -> str:
        return hash_document(self.texts[name].encode()).hex()

    def file_of(self, name: str) -> str:
        path = self.folder / f"{name}.txt"
        path.write_bytes(self.texts[name].encode())
        return str(path)


def run(command: str, place: Path, *options: str, expect: int = 0) -> Any:
    """Run a command; return what it says as JSON, or, without `--json`, the process."""
    done = call_here(command, place, *options, expect=expect)
    return done.json if "--json" in options else done


trace, report = partial(run, "trace"), partial(run, "clean-report")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("ways")
    web, forum, spare = sentences(420, 0), sentences(120, 420), sentences(300, 540)
    near = " ".join(web[14:17] + web[22:23])
    texts = {
        "own copy": web[11],
        "shared": web[12],
        "listed": web[13],
        "falls twice": "incomprehensibilities antidisestablishmentarianism",
        "near": change(near, 0.93, random.Random(1)),
        "original": near + " and so on until the very end of the page, where nothing else stands",
        "exam": f"{web[17]} {ITEM} {web[18]}",
        "low score": web[19] + " low",
        "empty": "",
        "short": "Too short.",
        "huge": "page " * 5996 + "page CONFIDENTIAL ..",
        "matched": web[20] + " <script>alert(1)</script>\u202e \x1b[2J CONFIDENTIAL",
        "masked": web[21] + " Write to anna.berg@gmail.com today.",
        "mailed": forum[1] + " Write to anna.berg@gmail.com today.",
        "long": " ".join([forum[2], *sentences(12, 700), "supercalifragilisticexpialidocious-" * 400]),
        "filtered": forum[3] + " lorem ipsum",
        "german": "Der schnelle braune Fuchs springt über den faulen Hund, und viele Tiere sehen ihm dabei zu.",
        "unknown": "Nobody has ever written this sentence about purple hydrants in any of the three sources.",
    }
    names = ("own copy", "falls twice", "near", "original", "exam", "short", "matched", "masked", "empty", "huge")
    rows = [*((text, 3) for text in web), *((texts[name], 3) for name in names), (texts["low score"], 1), (None, 3)]
    write(folder / "web.jsonl", rows)
    with (folder / "web.jsonl").open("ab") as file:
        file.write(b'{broken\n{"text": "caf\xe9", "score": 3}\n')
    forum += [texts[name] for name in ("mailed", "long", "filtered", "german", "shared")]
    write(folder / "forum.jsonl", [(text, 0) for text in forum])
    write(folder / "spare.jsonl", [(text, 0) for text in spare])
    write(folder / "exam.jsonl", [(ITEM, 0)])
    (folder / "lid.ftz").write_bytes(MODEL.read_bytes())
    (folder / "block.txt").write_text(hash_document(texts["listed"].encode()).hex() + "\n")
    (folder / "recipe.toml").write_text(turn_off_others(RECIPE))
    pipeline.build_set(folder / "recipe.toml", out=folder / "set", workers=1, validate="quick")
    texts["not taken"] = max(forum[:120], key=lambda text: hash_document(text.encode()))
    return Built(folder, texts)


def test_each_planted_document_is_counted_and_shown(built: Built):
    manifest = shards.open_set(built.folder / "set").manifest
    counted = {(source.name, reason): count for source in manifest.sources for reason, count in source.dropped.items()}
    planted = [(source, reason) for source, reason, *_ in FATES.values()]
    planted += [("web", "malformed record"), ("web", "text is not valid UTF-8")]
    several = [("forum", "not taken: take = 0.9"), ("web", "near-duplicate")]  # of the prose, too
    assert all(counted[key] == 1 for key in planted if key not in several)
    texts = [json.loads(line)["text"] for line in (built.folder / "forum.jsonl").read_text().splitlines()[:120]]
    beyond = sum(hash_document(text.encode())[:8] > bytes.fromhex("e666666666666800") for text in texts)
    assert beyond - 4 <= counted[several[0]] <= beyond
    found = report(built.folder / "set.work", "--json", "--examples", "3")
    assert {(row["source"], row["reason"]): row["documents"] for row in found["rows"]} == counted
    for name, (source, reason, code, _) in FATES.items():
        (row,) = (row for row in found["rows"] if (row["source"], row["reason"]) == (source, reason))
        assert (row["note"], row["tokens"] is None) == (("", False) if code else ("before encoding", True))
        if code not in ("", "take") or name in ("long", "german", "filtered"):
            assert any(built.texts[name][:20] in one["text"] for one in row["examples"]), name
    for own in found["sources"]:
        gone = [row for row in found["rows"] if row["source"] == own["name"] and row["tokens"] is not None]
        for unit in ("documents", "tokens"):
            assert own["read"][unit] == own["left"][unit] + sum(row[unit] for row in gone) > 0
    # A limit alone, at its value and at others.
    (limit,) = (row for row in found["rows"] if row["limit"] == 6)
    assert len(limit["alone"]) == 4
    assert all(documents == (value > 2) for value, documents in limit["alone"])
    shown = report(built.folder / "set.work", "--examples", "3").stdout
    assert "holds 100% of exam.jsonl@" in shown
    assert re.search(r"  similar by 0\.[89]\d\d to web.jsonl@\S+ row 423: ", shown)
    assert "forum: language: de" in shown


@pytest.mark.parametrize("name", [name for name, fate in FATES.items() if fate[3]])
def test_trace_says_why(built: Built, name: str):
    source, reason, code, sentence = FATES[name]
    if not code:
        answer = built.ask("--document", built.file_of(name))
        tried = {entry["source"]: entry for entry in answer["tried"]}[source]
        assert (answer["answer"], tried["dropped"]) == ("would be dropped before encoding", reason)
        assert tried["details"][0].startswith(sentence)
        return
    copies = built.ask("--hash", built.hash_of(name), "--work", str(built.folder / "set.work"))["copies"]
    (copy,) = (copy for copy in copies if copy["reasons"] and copy["reasons"][0]["step"] == code)
    assert (copy["source"], copy["shards"]) == (source, [])
    assert copy["state"] == ("not taken" if code == "take" else "dropped")
    assert re.fullmatch(sentence, copy["reasons"][0]["text"])
    if name == "falls twice":
        assert copy["reasons"][1]["text"] == "gopher: max_mean_word_chars: mean_word_chars is 24.5, limit 12"
    if name == "exam":
        found = re.findall(r"[\d,]+", copy["reasons"][0]["text"].partition("in bytes ")[2])
        start, stop = (int(digits.replace(",", "")) for digits in found[:2])
        assert built.texts["exam"].encode()[start:stop].decode() == ITEM.rstrip(".")


def check_alarm(said: str, built: Built, name: str) -> None:
    """Check that what was said has the counts of an alarm, the planted document and the remedy."""
    assert re.search(
        rf"source '{FATES[name][0]}': .* drops \d of \d+ documents .*, more than max_dropped = 0.0 allows", said
    )
    shown = {"matched": "\\x1b[2J >>>CONFIDENTIAL<<<", "near": "similar by 0.", "exam": f">>>{ITEM[:40]}"}
    assert shown.get(name, built.texts[name][:20] if name != "mailed" else "forum.jsonl row 120") in said, name
    assert "or set max_dropped = 0.0" in said


def test_alarms_of_plan_and_build_show_what_would_go(built: Built):
    recipe, work = built.folder / "recipe.toml", built.folder / "strict.work"
    strict = overrides(*(f"{key}=0" for key in BOUNDS.values()))
    planned = call_here("plan", recipe, *strict, "--json").json
    assert len(planned["stops"]) >= 5
    for name in BOUNDS:
        check_alarm("\n".join(planned["stops"]), built, name)
    # A build stops at the first source, and in the mix tells all; the report shows that mix.
    early = build_here(recipe, built.folder / "strict", *strict, expect=2)["stderr"]
    receipts = "".join(path.read_text() for path in work.rglob("*.json"))
    assert "anna.berg" not in early + "".join(planned["stops"]) + receipts, "personal data is not told"
    check_alarm(early, built, "matched")
    assert "  matches CONFIDENTIAL:\n" in early
    stopped = build_here(recipe, built.folder / "strict", *strict[-6:], expect=2)["stderr"]
    for name in [*BOUNDS][-3:]:
        check_alarm(stopped, built, name)
    assert f"`tokenmill clean-report {work} --examples 10` shows more." in stopped
    assert report(work, "--json")["rows"]
    enough = max(map(float, re.findall(r"set max_dropped = ([\d.]+)", stopped)))
    allowed = overrides(*(f"{key}={enough}" for key in BOUNDS.values()))
    ran = build_here(recipe, built.folder / "strict", *allowed[-6:])["ran"]
    assert (ran["tokenizer"], ran["encode"], ran["mix"]) == (0, 0, 0)


def test_a_smaller_share_of_a_source_is_a_part_of_a_larger_one(built: Built):
    place, bound = built.folder / "shares", ("mix.tokens=max", "mix.when_short=shrink")

    def build(take: float) -> tuple[dict[str, Any], list[Any], set[str]]:
        """Return what the build says, what it says of the other sources with the validation split, the web's hashes."""
        done = build_here(built.folder / "recipe.toml", place, *overrides(*bound, f"sources.web.take={take}"))
        rows = [
            (shard.entry.split, row["source"], row["hash"].hex())
            for shard in shards.open_set(place).shards
            for row in shard.documents(["source", "hash"]).to_pylist()
        ]
        validation = {digest for split, _, digest in rows if split == "val"}
        return done, [*done["sources"][1:], validation], {digest for _, source, digest in rows if source == "web"}

    first, others, whole = build(1)
    second, same, part = build(0.5)
    assert same == others
    assert second["ran"].pop("mix") == 1
    assert second["ran"].pop("assemble") > 0
    assert not any(second["ran"].values())
    # What FORMAT.md says of a hash, of the documents that the whole source gives.
    assert set() < part == {digest for digest in whole if int(digest[:16], 16) < 2**63} < whole
    before, after = first["sources"][0], second["sources"][0]
    assert (before["documents_available"], after["documents_available"]) == (len(whole), len(part))
    assert after["dropped"] == before["dropped"] | {"not taken: take = 0.5": len(whole) - len(part)}
    assert "sources.web.take = 0.5 (was 1.0)" in second["stderr"]


def test_every_document_of_the_set_is_where_the_work_folder_says(built: Built):
    for shard in shards.open_set(built.folder / "set").shards:
        for value in shard.documents(["hash"])["hash"].to_pylist()[:4]:
            answer = built.ask("--hash", value.hex(), "--work", str(built.folder / "set.work"))
            states = {tuple(copy["shards"]) for copy in answer["copies"] if copy["state"] == "in the set"}
            assert states == {(shard.name,)}, "and in no other shard"
            assert answer["answer"] == "in the set"


def test_beyond_the_budget(built: Built):
    held = hashes_in(built.folder / "set")
    spare = [json.loads(line)["text"] for line in (built.folder / "spare.jsonl").read_text().splitlines()]
    known = {hash_document(text.encode()).hex() for text in spare}
    left = sorted(known - held)
    assert len(left) > 20
    assert max(known & held) < left[0], "those with the lowest hashes are taken"
    (copy,) = built.ask("--hash", left[0])["copies"]
    assert (copy["state"], copy["source"], copy["shards"]) == ("not taken", "spare", [])
    (reason,) = copy["reasons"]
    assert reason["step"] == "budget"
    found = re.search(r"takes ([\d,]+) training tokens .*, which has ([\d,]+): .* lowest hashes", reason["text"])
    assert found
    manifest = shards.open_set(built.folder / "set").manifest
    assert int(found[2].replace(",", "")) == manifest.sources[2].tokens_available
    assert int(found[1].replace(",", "")) == manifest.mix[2].requested_tokens


def test_texts_that_are_not_in_the_set_or_were_masked(built: Built):
    # A hash alone does not tell what was dropped before encoding.
    answer = built.ask("--hash", built.hash_of("short"))
    assert answer["answer"] == "unknown"
    dropped = answer["dropped_before_encoding"]
    assert (dropped["web"]["malformed record"], dropped["forum"]["personal data: email"]) == (1, 1)
    assert answer["masked"] == {"email": 1}
    said = trace(built.folder / "set", "--hash", built.hash_of("short")).stdout
    assert "A hash alone does not tell" in said
    assert "1 because malformed record" in said
    answer = built.ask("--document", built.file_of("masked"))
    (entry,) = [entry for entry in answer["tried"] if entry["source"] == "web"]
    (copy,) = entry["copies"]
    assert (entry["masked"], copy["row"], copy["state"]) == ({"email": 1}, 427, answer["answer"])
    tried = built.ask("--document", built.file_of("unknown"))
    assert (tried["answer"], [entry["dropped"] for entry in tried["tried"]]) == ("never seen", [None, None, None])
    said = trace(built.folder / "set", "--document", built.file_of("unknown")).stdout
    assert said.count("has this text: cleaning keeps it") == 1


def test_what_is_only_reported_and_a_build_that_stopped(built: Built):
    place = built.folder / "reported"
    reported = {"clean.near_duplicates.action": '"report"', "mix.tokens": '"max"', "mix.when_short": '"shrink"'}
    changes = [f"{key}={value}" for key, value in reported.items()]
    changes.append(f'evaluations=[{{name="exam", paths=["{built.folder}/exam.jsonl"]}}]')
    recipe = built.folder / "recipe.toml"
    said = build_here(recipe, place, *overrides(*changes, "clean.near_duplicates.max_dropped=0"))["stderr"]
    assert re.search(r"mix: drop_hashes: 1 of \d hash(es)? of block.txt found, 1 document dropped", said)
    assert re.search(r"near-duplicates: web: similar to a kept document, .* \d of \d+ documents", said)
    shown = report(built.folder / "reported.work", "--examples", "1").stdout
    assert "near-duplicate (reported, not dropped)" in shown
    assert "  similar by " in shown
    for name, step in (("near", "near_duplicate"), ("exam", "evaluations")):
        (copy,) = built.ask("--hash", built.hash_of(name), "--work", f"{place}.work", place="reported")["copies"]
        (note,) = copy["notes"]
        assert (copy["state"] in ("in the set", "not taken"), note["step"]) == (True, step)
        assert 'action = "report" keeps' in note["text"]
    with pytest.raises(InputError):
        pipeline.build_set(recipe, out=place, overrides=[changes[0], changes[3], "mix.tokens=1_000_000"], workers=1)
    answer = built.ask("--hash", built.hash_of("near"), "--work", f"{place}.work", place="reported")
    assert not answer["of_this_set"]
    (reason,) = answer["copies"][0]["reasons"]
    assert (answer["answer"], reason["step"]) == ("not taken", "stopped")
    assert "the sources are too small" in reason["text"]


def test_a_page_shows_the_table_and_documents(built: Built, tmp_path: Path):
    page, work = tmp_path / "pages/clean.html", built.folder / "set.work"
    assert "clean.html: " in report(work, "--html", str(page)).stdout
    written = page.read_bytes()
    report(work, "--html", str(page))
    assert page.read_bytes() == written, "an earlier page is replaced by the same bytes"
    text = page.read_text()
    found = report(work, "--json", "--examples", "10")
    for row in found["rows"]:
        lines = [line for line in text.splitlines() if f">{row['reason'].partition(' >=')[0]}" in line]
        assert any(f"<td>{row['documents']}</td>" in line for line in lines), row["reason"]
    examples = [one for row in found["rows"] for one in row["examples"]]
    assert text.count("<pre") == len(examples) + sum("twin" in one for one in examples) > 10
    assert "http" not in text.replace("http-equiv", "")
    # Text of others stays text.
    assert "&lt;script&gt;" in text
    assert not [part for part in ("<script", "\x1b", "\u202e") if part in text]


def test_a_damaged_work_folder_is_repaired_by_a_build_as_the_report_says(built: Built, tmp_path: Path):
    work = tmp_path / "set.work"
    for name in ("set", "set.work"):
        shutil.copytree(built.folder / name, tmp_path / name)
    whole = report(work, "--json")
    (evidence,) = work.glob("mix/*/*/evidence.parquet")
    for file in (evidence, work / BUILD_FILE):
        file.write_bytes(file.read_bytes()[:-40])
        refused = report(work, expect=1).stderr
        assert f"{file}: " in refused
        assert "Run the build command again: it rebuilds what is missing or damaged." in refused
        build_here(built.folder / "recipe.toml", tmp_path / "set")
        assert report(work, "--json") == whole


def test_a_source_that_was_read_whole_without_drops_is_told_for_certain(tmp_path: Path):
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
    told = trace(tmp_path / "set", "--document", tmp_path / "copy.txt").stdout
    for part in ("not valid UTF-8; above max_malformed = 0", "read as file in iso8859-1", "#file row 0: in the set"):
        assert part in told
    # The work folder of another build of the set: it says so.
    note = tmp_path / "set.work" / BUILD_FILE
    note.write_bytes(seal(unseal(note.read_bytes()) | {"manifest": "0"}))
    assert "did not make this set" in trace(tmp_path / "set", "--hash", "ab" * 16).stdout
    # The build mends its note without a task.
    assert not pipeline.build_set(recipe, out=tmp_path / "set", workers=1).tasks_run
    assert trace(tmp_path / "set", "--hash", "ab" * 16, "--json")["build"]["of_this_set"]
    # A run that was lost, and a folder without a build.
    for path in tmp_path.glob("set.work/encode/*/*/documents.npy"):
        path.unlink()
    assert "Run the build command again" in trace(tmp_path / "set", "--hash", "ab" * 16, expect=1).stderr
    (tmp_path / "set.work").rename(tmp_path / "elsewhere")
    lost = trace(tmp_path / "set", "--hash", "ab" * 16).stdout
    assert "give it with --work" in lost


def test_of_a_file_that_a_source_lists_that_source_alone_is_asked(tmp_path: Path):
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
    assert "# train-00000 document" in trace(tmp_path / "set", "--document", f"{tmp_path}/plain.txt.gz").stdout
    first, *rest = trace(tmp_path / "set", "--document", f"{tmp_path}/sent.txt.gz").stdout.splitlines()
    assert re.fullmatch(r"in the set, changed before encoding; this text has the hash \w{32}", first)
    assert re.fullmatch(r"mail: this text: masked \(2 times email\), and then has the hash \w{32}", rest[0])
    assert re.fullmatch(r"  mail: sent.txt.gz@\w+#file row 0: in the set, train-00000", rest[1])
    assert len(rest) == 2
    for name, format_ in (("a.jsonl", "jsonl"), ("cut.txt", "text")):
        refused = trace(tmp_path / "set", "--document", f"{tmp_path}/{name}", expect=2).stderr
        assert f"{name}: holds several documents ({format_}). Give a file with the text of one;" in refused
    (tmp_path / "photo.png").write_bytes(b"\xff")
    said = trace(tmp_path / "set", "--document", f"{tmp_path}/photo.png").stdout
    assert "a, mail: this text would be dropped before encoding\n  text is not valid UTF-8" in said
    assert "cut: this text would be dropped before encoding\n  text is not valid utf-16" in said
    (tmp_path / "sent.txt.gz").write_bytes(b"no gzip")
    assert "zlib inflate" in trace(tmp_path / "set", "--document", f"{tmp_path}/sent.txt.gz", expect=2).stderr

"""`tokenmill init`: what is found in a folder of mixed files, and the recipe that plan and build take as it is."""

import gzip
import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.sources import survey
from pipeline.sources.files import list_files
from shards.errors import shell_command
from tests.pipeline.test_marks import LAYOUTS
from tests.support.builds import call_here, real_documents
from tests.support.hub_builds import Command
from tests.support.reading import read_batches, texts_of
from tests.support.recipes import write_file, write_lines
from tests.support.servers.hub import Hub
from trainer.metrics import METRICS_FILE
from trainer.run_folder import RECIPE_FILE

CHAT = [{"messages": [{"role": "user", "content": "Which way?"}, {"role": "assistant", "content": "This way. " * 9}]}]
MAIL = "Return-Path: <a@b>\nMessage-ID: <1@b>\nSubject: Hello\n\nA mail.\n"
PAGE = "<!DOCTYPE html><html><head><title>{0}</title></head><body><nav>Home</nav><p>{0}</p></body></html>"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n"


def write_files(folder: Path) -> None:
    """Write a folder of mixed files, as a person has them."""
    texts = [text.replace("\r", "") for text in real_documents()]
    records = [{"id": str(number), "body": {"text": text}} for number, text in enumerate(texts[300:400])]
    for name, content in {
        **{f"notes/{number}.txt": text for number, text in enumerate(texts[:60])},
        **{f"notes/{number}.md": text for number, text in enumerate(texts[60:90])},
        **{f"man/man{number % 3}/tool.{number % 8}": text for number, text in enumerate(texts[90:120])},
        **{f"man/README-{number}": f"{text} {number}" for number, text in enumerate(texts[90:105])},
        **{f"pages/{number}": PAGE.format(text) for number, text in enumerate(texts[400:420])},
        **{f"copies/{name}/{number}.txt": texts[number] for number in (430, 431) for name in ("a", "a (copy)", "b")},
        "copies/b/430.txt": '{"a": 1}\n' + texts[430][::-1],
        "notes/wide.txt": "\n\n".join(texts[450:480]).encode("utf-16"),
        "alone/readme.md": "<!-- a > b -->\n" * 60 + "Read me, says a text about <|endoftext|>. " * 9,
        "code/one": "first one\n\nsecond",
        "code/two.c": "third\r",
        "code/four.gz": gzip.compress(b"fifth\nsixth"),
        "code/old.tar.gz": b"",
        "notes/escape.txt": f"\x1b$ {'. ' * 100_000} café.".encode(),
        "notes/latin.txt": "A note of Aurèle's on the mill.\n".encode() * 9 + b"O\xc4uz read it.",
        "notes/empty.txt": b" \n",
        "notes/binary.txt": bytes(range(256)) * 9,
        "notes/.hidden": b"not read",
        "notes/art.svg": '<?xml version="1.0"?>\n<!-- drawn > -->\n<!DOCTYPE svg [<!ENTITY a "b">]>\n'
        '<svg xmlns="a"><text>A word.</text></svg>\n',
        "notes/mail.txt": MAIL,
        "notes/box.txt": "From me@here Mon Jan  1 00:00:00 2024\nSubject: Hello\n\nA mail.\n",
        "notes/old.txt~": "An older text.",
        "rows/table.csv": "id;story\n"
        + "\n".join(f'{n};"{text.replace(chr(34), "")}"' for n, text in enumerate(texts[200:300])),
        "rows/other.csv": "a;text\n1;Some words of a text.\n",
        "rows/tabs.tsv": "n\tstory\n1\tOne story.\n2\tAnother one.\n",
        "rows/lines.jsonl": "\n".join(map(json.dumps, records)) + "\nnot JSON\n",
        **{
            f"rows/more.{ending}": "{}\n" + "\n\n".join(json.dumps({"body": {"text": text}}) for text in texts[420:440])
            for ending in ("data", "txt")
        },
        "rows/null-eval.jsonl": "\n".join(
            json.dumps({"story": text if n % 2 else None}) for n, text in enumerate(texts[:9])
        ),
        "rows/chat.json": json.dumps(CHAT, indent=2),
        "rows/turns.json": json.dumps([{"turns": ["Which way?", "This way. " * 9]}]),
        "rows/words.json": json.dumps({"word": {"body": "What a word means."}}),
        "rows/pa\nge.pdf": b"%PDF-1.7\n\0",
        "rows/page.ps.gz": gzip.compress(b"%!PS-Adobe-3.0\nshow"),
        "rows/page.rtf": "{\\rtf1 A page.}",
        "rows/n.csv": "a,b\n1,2\n3,4\n",
        "rows/b.ipynb": json.dumps({"nbformat": 9, "cells": []}),
        "long/one.txt": "\r\n\r\n".join(texts[120:400]) * 3,
        "long/two.txt": "\n".join(texts[120:400]).replace("\n\n", "\n") * 3,
        "marked/all.txt": "\n<|endoftext|>\n".join(texts[500:560]),
        "marked/fortune": "\n%\n".join(text[:99] for text in texts[560:620]),
        "lfs/a.bin": LFS,
    }.items():
        write_file(folder / name, content)
    for number in range(2):
        place = folder / f"hive/day\n={number}/lang=en/a.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.table({"url": ["http://a"] * 25, "text": texts[400 + 25 * number : 425 + 25 * number]}), place
        )
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), folder / "rows/empty.parquet")
    os.mkfifo(folder / "notes/pipe.txt")
    for link, to in {"pages/again": "../notes", "gone.txt": "nowhere", "notes/up": "../..", "notes/root": "/"}.items():
        (folder / link).symlink_to(to)


def read_sources(recipe: Path) -> dict[str, dict[str, Any]]:
    """Return the sources of a recipe by name."""
    return {source.pop("name"): source for source in tomllib.loads(recipe.read_text())["sources"]}


def test_a_folder_becomes_a_recipe_that_plan_and_build_take(tmp_path: Path):
    write_files(tmp_path / "my data")
    done = call_here("init", "my data", "--verbose", cwd=tmp_path, expect=0)
    joined = {"format": "text", "join_bytes": 32768}
    table = {"format": "csv", "delimiter": ";"}
    assert read_sources(tmp_path / "recipe.toml") == {
        "alone": {"paths": ["my data/alone/**/*.md"], "format": "file"},
        "code": {"paths": ["my data/code/**/*"], "exclude": ["my data/code/**/*.tar.gz"], "format": "file"},
        "copies": {
            "paths": ["my data/copies/**/*.txt"],
            "exclude": ["my data/copies/a (copy)/**/*"],
            "format": "file",
        },
        "hive": {"paths": ["my data/hive/**/*.parquet"], "format": "parquet", "text": "text"},
        "long-text": {"paths": ["my data/long/one.txt"], "separator": "\r\n\r\n", **joined},
        "long-text-2": {"paths": ["my data/long/two.txt"], "separator": "\n", **joined},
        # Names such as tool.1 and those without an ending are one family.
        "man": {"paths": ["my data/man/**/*"], "format": "file"},
        "marked-text": {"paths": ["my data/marked/**/*.txt"], "format": "text", "separator": "\n<|endoftext|>\n"},
        "marked-text-2": {"paths": ["my data/marked/fortune"], "format": "text", "separator": "\n%\n"},
        "notes-file": {
            "paths": ["my data/notes/**/*.md", "my data/notes/**/*.txt"],
            "exclude": [f"my data/notes/{name}.txt" for name in ("binary", "box", "empty", "latin", "mail", "wide")],
            "format": "file",
        },
        "notes-file-utf-16": {"paths": ["my data/notes/wide.txt"], "format": "file", "encoding": "utf-16"},
        "pages": {"paths": ["my data/pages/**/*"], "exclude": ["my data/pages/again/**/*"], "format": "html"},
        "rows-csv": {"paths": ["my data/rows/other.csv"], **table, "text": "text"},
        "rows-csv-2": {"paths": ["my data/rows/table.csv"], **table, "text": "story"},
        "rows-jsonl": {
            "paths": ["my data/rows/**/*.data", "my data/rows/**/*.jsonl", "my data/rows/**/*.txt"],
            "exclude": ["my data/rows/null-eval.jsonl"],
            "format": "jsonl",
            "text": "body.text",
            "max_malformed": 0.02,
        },
        "rows-jsonl-2": {
            "paths": ["my data/rows/null-eval.jsonl"],
            "format": "jsonl",
            "text": "story",
            "max_null": 1.0,
        },
        "rows-json": {"paths": ["my data/rows/chat.json"], "format": "json", "messages": "messages"},
        "rows-tsv": {"paths": ["my data/rows/**/*.tsv"], "format": "csv", "delimiter": "\t", "text": "story"},
    }
    written = (tmp_path / "recipe.toml").read_text()
    assert tomllib.loads(written)["chat"] == {"format": "chatml", "max_tokens": 2048}
    for said in [
        "my data/notes/binary.txt: binary data",
        "my data/notes/art.svg: an image (SVG or XPM), not text",
        "my data/rows/pa\\nge.pdf: PDF, not text",
        "my data/rows/page.ps.gz: PostScript, not text",
        "my data/rows/page.rtf: RTF, not text",
        "my data/rows/words.json: one JSON object with others in it, no records; `jq -c '.[]'` writes these",
        "my data/rows/turns.json: the text is in lists, 'turns[]': join the texts of each, or write messages",
        "my data/notes/box.txt, my data/notes/mail.txt: headers of mail",
        "my data/notes/latin.txt: not UTF-8, nor in an encoding that can be told",
        "my data/copies/a (copy)/430.txt, my data/copies/a (copy)/431.txt: in a copy of the folder 'a' beside it",
        "my data/gone.txt: a broken link",
        "my data/notes/root, my data/notes/up, my data/pages/again: a link to a folder that is read already or lies ab",
        "my data/rows/n.csv: no column of text",
        'code: lines end with "\\r\\n" or "\\r" (my data/code/two.c), which stays',
        "rows-jsonl-2: read, though it may be a test or validation split: my data/rows/null-eval.jsonl",
        "rows-json: conversations of more than 2,048 tokens are dropped (chat.max_tokens)",
        "my data/notes/empty.txt, my data/rows/empty.parquet: empty",
        "my data/notes/old.txt~: an editor's backup",
        "my data/rows/b.ipynb: expected nbformat 3 or 4, found 9",
        "my data/lfs/a.bin: a pointer of Git LFS: fetch the file by `git lfs pull`",
        "my data/notes/.hidden: hidden;",
        "rows-jsonl: some records are malformed, and dropped: my data/rows/lines.jsonl: record 100",
        'folders are columns (day\\n, lang); conditions: keep = { "day\\n" = ',
    ]:
        assert said in written
        assert said in done.stdout or said.startswith("folders")
    assert done.stdout.splitlines()[-5:] == [
        "tokenmill plan recipe.toml",
        "tokenmill build recipe.toml --out out/my-data",
        "tokenmill audit out/my-data",
        "tokenmill fit --shards out/my-data --write my-data-model.toml",
        "tokenmill train my-data-model.toml --shards out/my-data --run out/my-data-run",
    ]
    brief = call_here("init", "my data", "--out", "b.toml", cwd=tmp_path).stdout
    assert "more with --verbose" in brief
    assert brief.count("left out") <= 5
    # Each regular file is in a source, or is said.
    read = {file.url for source in load_checked_recipe(tmp_path / "recipe.toml").sources for file in list_files(source)}
    told = call_here("init", "my data", "--out", "c.toml", "--json", cwd=tmp_path).json["notes"]
    for folder, _, names in os.walk(tmp_path / "my data"):
        for path in (Path(folder, name) for name in names):
            assert str(path) in read or any(path.name.replace("\n", "\\n") in line for line in told), path
    for command in ("plan recipe.toml", "build recipe.toml --out out/x --workers 1"):
        call_here(*command.split(), cwd=tmp_path, expect=0)


def write_text(path: Path, text: str) -> None:
    """Write a text in the format that a file's name says."""
    is_table = ".csv" in path.name or ".tsv" in path.name
    write_file(path, json.dumps({"text": text}) if ".json" in path.name else f"text\n{text}" if is_table else text)
    if ".parquet" in path.name:
        pq.write_table(pa.table({"text": [text]}), path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_text_of_a_split_is_in_the_recipe(layout: str, tmp_path: Path):
    """If a folder is named, or all in it, as a shell does for `d/*`."""
    train, _, held = LAYOUTS[layout].partition("|")
    for name in f"{train} {held}".split():
        write_text(tmp_path / "d" / name, f"This is {name}.")
    (tmp_path / "d/other.txt").write_text("Another text.")
    for recipe, given in (("a", ["d"]), ("b", [*map(str, (tmp_path / "d").iterdir())])):
        said = call_here("init", *given, "--out", f"{recipe}.toml", "--verbose", cwd=tmp_path).stdout
        sources = load_checked_recipe(tmp_path / f"{recipe}.toml").sources
        texts = {text for source in sources for text in texts_of(read_batches(source))}
        assert texts == {"Another text.", *(f"This is {name}." for name in train.split())}
        assert all(name.rpartition("/")[2] in said for name in held.split())


def test_the_same_for_files_in_any_number(tmp_path: Path):
    """One file; two; one that is said to be a test split; duplicates of another source; a page without text."""
    made = {
        "one/a.txt": "A short text.",
        "two/a.md": "A short text.",
        "two/b.md": "Another short text, of some more words.",
        "test.jsonl": '{"text": "A test."}',
        "same/a/1.txt": "The same text. " * 9,
        "same/b/1.csv": f"text\n{'The same text. ' * 9}\n",
        "page/a.html": "<html><body></body></html>",
        "page/b.html": PAGE.format("A page of some words. " * 9),
    }
    for name, text in made.items():
        write_file(tmp_path / name, text)
    for out in ("one", "two", "test.jsonl", "same", "page"):
        for command in (f"init {out} --out {out}.toml", f"plan {out}.toml", f"build {out}.toml --out {out}-set"):
            call_here(*command.split(), cwd=tmp_path, expect=0)
    assert "val_tokens = 0" in (tmp_path / "one.toml").read_text()


def test_files_that_are_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those of an encoding are a source; what the product wrote is left out."""
    odd: list[str] = []
    for number, text in enumerate(real_documents()[:100]):
        odd += [f"texts/{number % 20}/{number}.txt"] if number % 9 == 5 else []
        data = f"{text}\ncafé\xa0!".encode("cp1252" if number % 9 == 5 else "utf-8", "ignore")
        write_file(tmp_path / f"texts/{number % 20}/{number}.txt", data.center(200_000 * (number == 14), b"."))
    (tmp_path / "texts/0/faulty.txt").write_bytes("日本語の文。".encode() * 9 + b"\xff")
    for recipe, given in (("a.toml", "texts"), ("b.toml", "texts/**/*.txt")):
        call_here("init", given, given, "--out", recipe, cwd=tmp_path, expect=0)
        found, western = read_sources(tmp_path / recipe).values()
        exclude = sorted([*odd, "texts/0/faulty.txt"])
        assert found == {"paths": ["texts/**/*.txt"], "exclude": exclude, "format": "file"}
        assert western["encoding"] == "cp1252"
        assert len(load_checked_recipe(tmp_path / recipe).sources[1].exclude) == len(western["exclude"])
    for arguments in ("plan a.toml", "build b.toml --out out/b", "audit out/b", "report out/b"):
        call_here(*arguments.split(), cwd=tmp_path, expect=0)
    (tmp_path / "run").mkdir()
    for name in (RECIPE_FILE, METRICS_FILE):
        (tmp_path / "run" / name).write_text('{"text": "not read"}')
    said = call_here("init", ".", "--out", "c.toml", "--verbose", cwd=tmp_path).stdout
    for name, what in {"b": "a shard", "b.work": "the work", "b.audit": "an aud", "b.report": "a rep"}.items():
        assert re.search(rf"left out: out/{name}/.*: {what}", said), (name, said)
    (tmp_path / "n.csv").write_text("7,A story.\n" * 9_000 + "8,A café.\n9,Another one.\n" * 9, "cp1252")
    said = call_here("init", "n.csv", "--out", "n.toml", cwd=tmp_path, expect=2).stderr
    assert "n.csv: the first row looks like a record or a comment; add a header" in said
    monkeypatch.setattr(survey, "_BEGINNING_BYTES", 1 << 16)
    texts = {
        "cp1252": "No.\n" * 500_000 + "Le café noir de l’été. " * 9 + "É»",
        "cp1250": '<?xml version="1.0" encoding="UTF-8"?>\n' + "Když zazněl v noci křik, všichni se probudili. " * 9,
        "koi8-r": "Когда ночью раздался крик, все проснулись и вышли. " * 9,
        "cp932": "日本語の文。\n文",
        "gb18030": "夜里传来一声叫喊，大家都醒了，走出门去看。" * 9,
        "iso2022_jp": "日本語の文。\n文",
        "iso8859-15": '<?xml version="1.0" encoding="ISO-8859-15"?>\n<a>Œuvre, 9 €</a>',
    }
    for encoding, text in texts.items():
        (tmp_path / f"{encoding}.txt").write_bytes(text.encode(encoding))
        done = call_here("init", f"{encoding}.txt", "--out", f"{encoding}.toml", cwd=tmp_path, expect=0)
        ((name, source),) = read_sources(tmp_path / f"{encoding}.toml").items()
        assert source["encoding"] == encoding
        assert f"encodings, guessed or declared: {name} {encoding}. Read" in done.stdout
    # Of a page that declares none, too.
    (tmp_path / "page.html").write_bytes(PAGE.format(texts["koi8-r"]).encode("koi8-r"))
    done = call_here("init", "page.html", "--out", "page.toml", cwd=tmp_path, expect=0)
    assert "encodings, guessed or declared: page koi8-r" in done.stdout
    (page,) = load_checked_recipe(tmp_path / "page.toml").sources
    assert "крик" in texts_of(read_batches(page))[0]


def test_a_vocabulary_is_no_larger_than_text_that_repeats_itself_offers(tmp_path: Path):
    lines = ["one of the mills", "a river and a mill", "the miller sings"]
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text("\n".join((lines * 30)[number:]))
    (tmp_path / "long.txt").write_text("é" * 90_000)
    # What is odd at its beginning alone is read, too.
    table = pa.table({"text": lines * 9})
    (tmp_path / "a.jsonl").write_text('{"text": "a\\x41"}\n' + "\n".join(map(json.dumps, table.to_pylist())))
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table.slice(0, 0))
        file.write_table(table)
    for command in ("init . --out r.toml", "build r.toml --out out --workers 1"):
        call_here(*command.split(), cwd=tmp_path, expect=0)
    formats = [source.format for source in load_checked_recipe(tmp_path / "r.toml").sources]
    assert {"jsonl", "arrow"} <= {*formats}


def test_text_is_measured(tmp_path: Path):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in real_documents()[:4000] * 3)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "b/a.csv.zst").write_bytes(zstandard.compress(b"text\n" + b"the same words\n" * 100_000))
    found = call_here("init", ".", "--json", cwd=tmp_path).json["sources"]
    many = f"{lines.count(chr(10)):,}", found[0]["bytes"]
    assert [(source["documents"], source["bytes"]) for source in found] == [many, ("100,000", "1.4 MB"), many]


def test_strange_names_from_init_to_trace(tmp_path: Path):
    place = tmp_path / "it's a place"
    (place / "-da ta:").mkdir(parents=True)
    texts = [" ".join(f"word{number * place}" for place in range(40)) for number in range(1000, 1300)]
    # A shell, a glob, TOML or a terminal reads them otherwise; some are others, escaped.
    names = ["a b", "it's", 'q"t', "x=1", "-rf", "100%", r"b\x41", "bA", "[br]", "a[[]b", "a[b", "st*r", "ün", "$HOME"]
    names += ["`id`", "#h", "x::y", "0", "1.5", "new\nline", "\x1b[1m"]
    for number, name in enumerate(names):
        lines = [json.dumps({"text": text}) for text in texts[12 * number : 12 * number + 12]]
        (place / "-da ta:" / name).write_text("\n".join(lines))

    def run(line: str, *more: str) -> str:
        """Run a line that was printed, as a shell reads it."""
        shell = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True)
        program, *words = shell.stdout.split("\0")[:-1]
        done = call_here(*words, *more, cwd=place)
        assert (program, done.returncode) == ("tokenmill", 0), (line, done.stderr)
        return done.stdout

    asked = shell_command("tokenmill", "init", Path("-da ta:"), "--out", Path("-it`s \x1b[[]$HOME.toml"))
    printed = run(asked).splitlines()
    plan, build = (line for line in printed if line.startswith(("tokenmill plan ", "tokenmill build ")))
    assert json.loads(run(plan, "--json"))["sources"][0]["documents"] == 12 * len(names)
    printed = run(build, "--workers", "1").splitlines()
    for line in (line.partition("    ")[0] for line in map(str.strip, printed) if line.startswith("  tokenmill ")):
        if "trace" in line:
            (place / "document").write_text(texts[12 * names.index("a[b")])
            found = json.loads(run(line.replace("FILE", "document"), "--json"))
            assert found["documents"] == 1
            assert "/a[b@" in f"/{found['shown'][0]['unit']}"
        else:
            run(line)


@pytest.mark.long
def test_a_data_set_on_the_hub(tmp_path: Path):
    (tmp_path / "repo").mkdir()
    pq.write_table(
        pa.table({"url": ["http://a"] * 200, "body": real_documents()[:200]}), tmp_path / "repo/train.parquet"
    )
    with Hub() as hub:
        hub.publish("me/mine", tmp_path / "repo")
        run = Command(hub, tmp_path)
        run("init", "hf://datasets/me/mine", "--out", tmp_path / "r.toml")
        expected = {"kind": "hub", "repo": "me/mine", "split": "train", "revision": "main"}
        assert read_sources(tmp_path / "r.toml") == {"mine": expected | {"format": "parquet", "text": "body"}}
        run("plan", tmp_path / "r.toml")
    assert "Check the network" in run("init", "hf://datasets/me/other", "--out", tmp_path / "no.toml", expect=2)


@pytest.mark.parametrize("header", ["prompt,completion", "question,answer,context"])
def test_questions_and_answers_in_two_columns_are_conversations(header: str, tmp_path: Path):
    columns = header.split(",")
    rows = "".join(",".join(f"{number} words of a {name}" for name in columns) + "\n" for number in range(40))
    (tmp_path / "asked.csv").write_text(f"{header}\n{rows}")
    call_here("init", "asked.csv", cwd=tmp_path, expect=0)
    (source,) = read_sources(tmp_path / "recipe.toml").values()
    # With a third column that an answer needs, a person decides.
    assert source.get("messages") == (columns if len(columns) == 2 else None)
    assert ("[chat]" in (tmp_path / "recipe.toml").read_text()) == (len(columns) == 2)


def test_chats_that_a_build_cannot_take_are_left_out_with_their_reason(tmp_path: Path):
    asked, told = {"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A mill, I think."}
    made = {
        "message.jsonl": [asked, told] * 20,
        "tools.jsonl": [{"messages": [asked, told | {"tool_calls": [{"id": "1"}]}]}] * 20,
        "parts.jsonl": [{"messages": [asked | {"content": [{"type": "text", "text": "What is it?"}]}]}] * 20,
        "half.jsonl": [{"messages": [asked, told]}, {"text": "No messages are here."}] * 20,
        "alpaca.jsonl": [{"instruction": "Say what it is.", "input": "A house.", "output": "A mill, I think. " * 5}]
        * 20,
    }
    for name, records in made.items():
        write_lines(tmp_path / name, records)
    said = call_here("init", *made, "--verbose", cwd=tmp_path, expect=0).stdout
    for part in (
        "message.jsonl: each record is a message, as chats have",
        "tools.jsonl: 20 of 20 records are dropped (messages: tool calls: 20)",
        "parts.jsonl: the text is in lists, 'messages[].content[].text': join the texts",
        "half: 20 of 40 records are dropped (messages: none: 20).",
        "alpaca: text in other columns is not read: instruction, input. If they are",
    ):
        assert part in said
    assert read_sources(tmp_path / "recipe.toml")["half"]["max_null"] == 1.0

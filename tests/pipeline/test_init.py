"""`tokenmill init`: what is found in a folder of mixed files, and the recipe that `plan` takes as it is written."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.sources import survey
from shards import errors
from shards.errors import shell_command
from shards.terminal.amounts import format_size
from tests.support.builds import call_here, real_documents
from tests.support.cleaned_recipe import language_model
from tests.support.hub_builds import Command
from tests.support.servers.hub import Hub
from trainer.metrics import METRICS_FILE
from trainer.run_folder import RECIPE_FILE

PAGE = "<!DOCTYPE html><html><body><p>{}</p><p>Another one.</p></body></html>"
CHAT = [{"messages": [{"role": "user", "content": "Which way?"}, {"role": "assistant", "content": "This way. " * 9}]}]


def write_files(folder: Path) -> None:
    """Write a folder of mixed files, as a person has them."""
    texts = real_documents()
    records = [{"id": str(number), "body": {"text": text}} for number, text in enumerate(texts[300:400])]
    for name, content in {
        **{f"notes/{number}.txt": text for number, text in enumerate(texts[:60])},
        **{f"notes/{number}.md": text for number, text in enumerate(texts[60:90])},
        **{f"web/{number}.html": PAGE.format(text) for number, text in enumerate(texts[90:120])},
        "notes/wide.txt": "\n\n".join(texts[450:480]).encode("utf-16"),
        "readme": "Read me. " * 9,
        "alone/readme.md": "Read me. " * 9,
        "notes/page.html": PAGE.format("Alone. "),
        "code/one": "first\n\nsecond",
        "code/two.c": "third",
        "code/three.c": "fourth\r\n",
        "code/four.gz": gzip.compress(b"fifth\nsixth"),
        "notes/latin.txt": "日本語の文。".encode("sjis"),
        "notes/empty.txt": b" \n",
        "notes/binary.txt": bytes(range(256)) * 9,
        "notes/.hidden": b"not read",
        "rows/table.csv": "id;story\n"
        + "\n".join(f'{n};"{text.replace(chr(34), "")}"' for n, text in enumerate(texts[200:300])),
        "rows/lines.jsonl": "\n".join(map(json.dumps, records)),
        "rows/chat.json": json.dumps(CHAT, indent=2),
        "rows/pa\nge.pdf": b"%PDF-1.7\n\0",
        "rows/old.tar.gz": b"",
        "big.txt": "\r\n\r\n".join(text.replace("\r", "") for text in texts[120:200]),
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    pq.write_table(pa.table({"url": ["http://a"] * 50, "text": texts[400:450]}), folder / "rows/part.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), folder / "rows/empty.parquet")
    os.mkfifo(folder / "notes/pipe.txt")
    (folder / "rows/tabs.tsv").write_text("n\tstory\n1\tOne story.\n2\tAnother one.\n")
    for link, to in {"web/again": "../notes", "gone.txt": "nowhere", "notes/up": "../.."}.items():
        (folder / link).symlink_to(to)


def read_sources(recipe: Path) -> dict[str, dict[str, Any]]:
    """Return the sources of a recipe by name, without the keys that all have."""
    found = {source.pop("name"): source for source in tomllib.loads(recipe.read_text())["sources"]}
    assert abs(sum(source.pop("weight") for source in found.values()) - 100) < 1
    return found


def test_a_folder_becomes_a_recipe_that_plan_takes(tmp_path: Path) -> None:
    write_files(tmp_path / "my data")
    (tmp_path / "lines.jsonl").write_text('{"a": "Text."}')
    done = call_here("init", "my data", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_sources(tmp_path / "recipe.toml") == {
        # Fewer than ten files are cut: validation takes whole documents.
        "code-text-2": {"paths": ["my data/code/**/*.gz"], "format": "text", "separator": "\n"},
        "code-text": {"paths": ["my data/code/**/*.c", "my data/code/one"], "format": "text", "separator": "\n"},
        "my-data-text": {"paths": ["my data/*.txt", "my data/readme"], "format": "text", "separator": "\r\n\r\n"},
        "notes-file": {
            "paths": ["my data/notes/**/*.md", "my data/notes/**/*.txt"],
            "exclude": [f"my data/notes/up/**/*.{ending}" for ending in ("md", "txt")]
            + [f"my data/notes/{name}.txt" for name in ("binary", "empty", "latin", "wide")],
            "format": "file",
        },
        "notes-text-utf-16": {"paths": ["my data/notes/wide.txt"], "format": "text"}
        | {"encoding": "utf-16", "separator": "\n\n"},
        "rows-csv": {"paths": ["my data/rows/**/*.csv"], "format": "csv", "delimiter": ";", "text": "story"},
        "rows-jsonl": {"paths": ["my data/rows/**/*.jsonl"], "format": "jsonl", "text": "body.text"},
        "rows-tsv": {"paths": ["my data/rows/**/*.tsv"], "format": "csv", "delimiter": "\t", "text": "story"},
        "rows-parquet": {
            "paths": ["my data/rows/**/*.parquet"],
            "exclude": ["my data/rows/empty.parquet"],
            "format": "parquet",
            "text": "text",
        },
    }
    written = (tmp_path / "recipe.toml").read_text()
    for said in [
        "my data/notes/binary.txt: binary data",
        "my data/rows/pa\\nge.pdf: PDF, not text",
        "my data/rows/chat.json: each record holds a list, 'messages'; write one text per record first",
        "my data/notes/latin.txt: not UTF-8, nor cp1252; the recipe has a source for them, commented out",
        'my-data-text: cut at "\\r\\n\\r\\n" into about 81 documents; format = "file" without a separator makes each',
        "my data/gone.txt: a broken link",
        "my data/notes/up, my data/web/again: a link, not followed",
        "my data/alone/readme.md: one document; a source needs two",
        "my data/rows/empty.parquet",
        'code-text: lines end with "\\r\\n" (my data/code/three.c), which stays',
        "my data/notes/empty.txt: empty",
        "my data/notes/.hidden: hidden;",
    ]:
        assert said in written
        assert said in done.stdout
    for comment in ("the first row is the header", 'each file is one document; or format = "text" with'):
        assert f"  # {comment}" in written
    assert done.stdout.splitlines()[-4:] == [
        "tokenmill plan recipe.toml",
        "tokenmill build recipe.toml --out out/my-data",
        "tokenmill audit out/my-data",
        "tokenmill train demo --shards out/my-data --run out/my-data-run --set 'eval.sets=[]'",
    ]
    planned = call_here("plan", "recipe.toml", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert "would stop" not in planned.stdout
    twins = call_here("init", "../lines.jsonl", "big.txt", "rows/lines.jsonl", cwd=tmp_path / "my data")
    assert "lines-jsonl-2 " in twins.stdout


def test_files_that_are_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in ten is looked at, and one that is not UTF-8 has all looked at; what the product wrote is left out."""
    monkeypatch.setattr(survey, "MOST_LOOKED_AT", 10)
    odd: list[str] = []
    for number, text in enumerate(real_documents()[:100]):
        path = tmp_path / f"texts/{number % 20}/{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        odd += [f"texts/{number % 20}/{number}.txt"] if number % 9 == 5 else []
        data = f"{text}\ncafé\xa0!".encode("cp1252" if number % 9 == 5 else "utf-8", "ignore")
        path.write_bytes(data.center(200_000 * (number == 14), b"."))
    odd.append("texts/3/end.txt")
    (tmp_path / odd[-1]).write_bytes("Only the last: café".encode("cp1252"))
    (tmp_path / "texts/0/sjis.txt").write_bytes("日本語の文。".encode("sjis"))  # keeps no other file from being read
    for recipe, given in (("a.toml", "texts"), ("b.toml", "texts/**/*.txt")):
        assert call_here("init", given, given, "--out", recipe, cwd=tmp_path).returncode == 0
        found, western = read_sources(tmp_path / recipe).values()
        assert found == {"paths": ["texts/**/*.txt"], "exclude": sorted([*odd, "texts/0/sjis.txt"]), "format": "file"}
        assert western == {"paths": sorted(odd), "format": "file", "encoding": "cp1252"}
        written = (tmp_path / recipe).read_text()
        assert "# 89 files" in written
    for arguments in ("plan a.toml", "build b.toml --out out/b", "audit out/b", "report out/b"):
        assert call_here(*arguments.split(), cwd=tmp_path).returncode == 0, arguments
    (tmp_path / "run").mkdir()
    for name in (RECIPE_FILE, METRICS_FILE):
        (tmp_path / "run" / name).write_text('{"text": "not read"}')
    said = call_here("init", ".", "--out", "c.toml", cwd=tmp_path).stdout
    assert "looked at 10 files" in said
    for name in ("out/b: a shard", "out/b.work: the work", "out/b.audit: an aud", "out/b.report: a rep", "run: a tr"):
        assert f"left out: {name}" in said
    (tmp_path / "n.csv").write_text("7,A story.\n" * 9_000 + "8,A café.\n9,Another one.\n" * 9, "cp1252")
    said = call_here("init", "n.csv", "--out", "n.toml", cwd=tmp_path).stdout
    assert "looks like a record" in said
    assert "cp1252 is a guess" in said
    (tmp_path / "long.log").write_text("one line " * 200_000)
    said = call_here("init", "long.log", "--out", "d.toml", cwd=tmp_path).stdout
    assert 'cut at "\\n" into about 1 document;' in said
    western = "No.\n" * 500_000 + "Le café noir de l’été. " * 9 + "É»"
    for encoding, text in (("cp1252", western), ("sjis", "日本語の文。\n文")):
        (tmp_path / f"{encoding}.txt").write_bytes(text.encode(encoding))
        done = call_here("init", f"{encoding}.txt", "--out", f"{encoding}.toml", cwd=tmp_path)
        assert ("cp1252 is a guess" if encoding == "cp1252" else "nor cp1252") in done.stdout
        assert ('\nencoding = "cp1252"  # ' in (tmp_path / f"{encoding}.toml").read_text()) is (encoding == "cp1252")


def test_text_is_measured_and_its_languages_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in real_documents()[:4000] * 3)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "the same words"}\n' * 100_000))
    found = json.loads(call_here("init", ".", "--json", cwd=tmp_path).stdout)["sources"]
    assert [source["size"] for source in found] == [*[format_size(len(lines))] * 2, "2.7 MB"]
    said = "# languages of 54 documents: en 54\n"
    assert (said in (tmp_path / "recipe.toml").read_text()) == (language_model() is not None)
    monkeypatch.setattr(errors.importlib.util, "find_spec", {}.get)
    assert call_here("init", ".", "--out", "b.toml", cwd=tmp_path).returncode == 0
    assert "# languages" not in (tmp_path / "b.toml").read_text()


STRANGE = ("a b", "it's", 'q"t', "x=1", "-rf", "100%", r"b\x41", "bA", "[br]", "a[[]b", "a[b", "st*r", "ün", "$HOME")
"""Names of files, with such as a shell, a glob, TOML or a terminal reads otherwise; some are others, escaped."""


def test_strange_names_from_init_to_trace(tmp_path: Path) -> None:
    place = tmp_path / "it's a place"
    (place / "-da ta").mkdir(parents=True)
    texts = [" ".join(f"word{number * place}" for place in range(40)) for number in range(1000, 1300)]
    names = [*STRANGE, "`id`", "#h", "x::y", "0", "1.5", "new\nline", "\x1b[1m"]
    for number, name in enumerate(names):
        lines = [json.dumps({"text": text}) for text in texts[12 * number : 12 * number + 12]]
        (place / "-da ta" / name).write_text("\n".join(lines))

    def run(line: str, *more: str) -> str:
        """Run a line that was printed, as a shell reads it."""
        shell = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True)
        program, *words = shell.stdout.split("\0")[:-1]
        done = call_here(*words, *more, cwd=place)
        assert (program, done.returncode) == ("tokenmill", 0), (line, done.stderr)
        return done.stdout

    asked = shell_command("tokenmill", "init", Path("-da ta"), "--out", Path("-it`s \x1b[[]$HOME.toml"))
    printed = run(asked).splitlines()
    plan, build = (line for line in printed if line.startswith(("tokenmill plan ", "tokenmill build ")))
    assert json.loads(run(plan, "--json"))["sources"][0]["documents"] == 12 * len(names)
    (flags,) = (line.partition(": ")[2] for line in run(plan).splitlines() if line.startswith("weights that use all"))
    weights = [source["share"] for source in json.loads(run(f"{plan} {flags}", "--json"))["sources"]]
    assert weights == [1.0]
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
def test_a_data_set_on_the_hub(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    pq.write_table(
        pa.table({"url": ["http://a"] * 200, "body": real_documents()[:200]}), tmp_path / "repo/train.parquet"
    )
    with Hub() as hub:
        hub.publish("me/mine", tmp_path / "repo")
        run = Command(hub, tmp_path)
        run("init", "hf://datasets/me/mine", "--out", tmp_path / "r.toml")
        expected = {"kind": "hub", "repo": "me/mine", "split": "train", "revision": "main"}
        assert read_sources(tmp_path / "r.toml") == {"mine-parquet": expected | {"format": "parquet", "text": "body"}}
        run("plan", tmp_path / "r.toml")
    assert "Check the network" in run("init", "hf://datasets/me/other", "--out", tmp_path / "no.toml", expect=2)

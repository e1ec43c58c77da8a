"""What is not text: said by `plan`, `build` and `audit` of sources full of it, and of no prose, code or mathematics."""

import base64
import binascii
import html
import json
import re
from collections.abc import Callable
from pathlib import Path

from pipeline.sources.globs import HIDDEN
from shards.audit.not_text import KINDS, NotText, describe_not_text, look_for_not_text
from tests.support.builds import call_here, real_documents
from tests.support.recipes import source, write_file, write_recipe, write_texts

HYPHENS = "words hyphenated at line ends"


def as_page(text: str) -> str:
    return f"<html><head><title>A page</title></head><body><p>{html.escape(text)}</p></body></html>"


def as_fragment(text: str) -> str:
    return f"A page. <div class='a'><p>{text}</p><br/><ul><li>one</li><li>two</li></ul></div>"


def as_entities(text: str) -> str:
    return html.escape(f"\"{text[:500]}\" & 'so on' ")


def as_columns(text: str) -> str:
    """Return text as an extractor of PDF leaves it: lines of 40 characters that cut words."""
    lines = [text[place : place + 40] for place in range(0, len(text), 40)]
    return "".join(line + ("-\n" if line[-1:].isalpha() else "\n") for line in lines)


def as_chat(text: str) -> str:
    return json.dumps({"messages": [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": text}]})


def as_template(text: str) -> str:
    return f"<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n{text}<|im_end|>"


def as_mail(text: str) -> str:
    return f"From me@here Sat Nov 28\r\nTo: you\r\nReceived-SPF: none\r\n\tat all\r\nmime-version: 1.0\r\n\r\n{text}"


def each_line(form: str) -> Callable[[str], str]:
    return lambda text: "\n".join(form.format(n % 60, line) for n, line in enumerate(text.splitlines() * 6))


ESCAPED, ENCODED = "literal \"\\n\" or b'...'", "base64 or uuencode"
WAYS = [
    *((way, "HTML") for way in (as_page, as_fragment, as_entities)),
    *((as_columns, HYPHENS), (as_chat, "chat records"), (as_template, "chat records")),
    (as_mail, "headers of mail"),
    (lambda text: f"{text} “Déjà vu” – café".encode().decode("cp1252", "ignore"), "mojibake"),
    *((lambda text: repr(f"{text}\n\n" * 5), ESCAPED), (lambda text: repr(text.encode()), ESCAPED)),
    (lambda text: f"{{\\rtf1\\ansi {text}}}", "RTF"),
    (lambda text: f"'''A'''\n== Sea ==\n[[Sea]], [[Home]], [[File:a.png]], [[Port|harbour]]\n{text}", "wikitext"),
    (each_line(".SH {}\n{}\n.br"), "troff"),
    *(
        (each_line(f"{hour}00:{{:02}}{mark}000 --> 00:59.000\n{{}}\n"), "subtitles")
        for hour, mark in (("00:", ","), ("", "."))
    ),
    (lambda text: base64.encodebytes(text.encode()).decode(), ENCODED),
    (lambda text: base64.b64encode(text.encode()).decode(), ENCODED),
    (lambda text: "begin 644 a\n" + "".join(map(as_uuencoded, re.findall(".{45}", text * 3))), ENCODED),
    *(
        (each_line(form), "logs")
        for form in ("2026-01-02T03:04:{:02}Z {}", "Jan  2 03:04:{:02} host {}", "[    0.0000{:02}] {}")
    ),
    (lambda text: f"Below is an instruction.\n\n### Instruction:\nGo on.\n\n### Response:\n{text}", "chat records"),
    (lambda text: f"<start_of_turn>user\nGo on.<end_of_turn>\n<start_of_turn>model\n{text}", "chat records"),
    (lambda text: f"Human: Go on.\n\nAssistant: {text}", "chat records"),
    *(
        (each_line(form), "chat records")
        for form in ("12/31/25, 9:{:02} PM - Ann: {}", "[31.12.25, 21:04:{:02}] Ann Lee: {}", "[21:{:02}] <ann> {}")
    ),
]


def as_uuencoded(part: str) -> str:
    return binascii.b2a_uu(part.encode()[:45]).decode()


def find_kinds(text: str) -> list[str]:
    return [kind for kind, (is_kind, _) in KINDS.items() if is_kind(text)]


def test_each_kind_is_told():
    for way, kind in WAYS:
        texts = [way(text) for text in real_documents() if len(text) > 300]
        assert sum(kind in find_kinds(text) for text in texts) > 0.8 * len(texts), way


def test_silent_on_prose_and_source_code():
    code = [path for path in Path(html.__file__).parents[1].rglob("*.py") if "site-packages" not in path.parts]
    texts = [*real_documents(), *(path.read_text("utf-8", "ignore")[: 1 << 15] for path in code[:1000])]
    texts += ["If a<b and b<p, then a<p & p>a: <b, p>.", f"f'{as_fragment('x')}'\ndef page(): pass"]
    texts += ["From: A\n\nReceived: B"]
    anchors = "".join(f"\n[[PART-{number}]]\nPart {number}\n------\nText.\n" for number in range(9))
    texts += [anchors, anchors.replace("]]\n", "]]"), f"As AsciiDoc.{anchors}"]
    texts.append(
        "# A note\n" + "".join(f"\nWith [[Alice]] and [[Home page|at home]], {number}." for number in range(9))
    )
    assert len(texts) > 1500
    told = [text[:200] for text in texts if find_kinds(text)]
    assert len(told) <= len(texts) / 1000, told


def test_few_documents_are_not_told():
    found: NotText = {}
    for number in range(1000):
        look_for_not_text(found, as_page("x") if number < 4 else "Text.", f"row {number}")
    assert describe_not_text(found) == []
    look_for_not_text(found, as_page("x"), "row 1000")
    look_for_not_text(found, as_page("x"), "row 1001")
    (line,) = describe_not_text(found)
    assert line.startswith("HTML in 6 of 1,002 documents looked at, such as row 0. Extract the text of the pages")


def test_said_by_plan_build_and_audit(tmp_path: Path):
    """Also by plan and build alone: files without a record, hidden ones, and those that no separator divides."""
    texts = [text for text in real_documents() if len(text) > 300]
    for name in ("a.jsonl", "b.csv", ".c.jsonl", ".d/e.jsonl"):
        write_file(tmp_path / "prose" / name, "")
    write_texts(tmp_path / "prose/prose.jsonl", texts[:200])
    (tmp_path / "undivided.txt").write_bytes("\r\n\r\n".join(texts).encode())
    sources = [source("prose", "prose/**/*", weight=4), source("cut", "undivided.txt", separator="\n\n")]
    told = {as_page: "HTML", as_columns: HYPHENS, as_chat: "chat records"}
    for way in told:
        (tmp_path / (name := way.__name__)).mkdir()
        for number, text in enumerate(texts[200:400]):
            (tmp_path / name / f"{number}.md").write_text(way(text))
        sources.append(source(name, f"{name}/*", format="file"))
    recipe = write_recipe(tmp_path / "r.toml", *sources, mix={"when_short": "shrink"}, shards={"tokens": 50_000})
    planned = call_here("plan", recipe).stdout
    done = call_here("build", recipe, "--out", tmp_path / "set", "--workers", "1")
    built = done.stdout + done.stderr
    audited = call_here("audit", tmp_path / "set", "--workers", "1", "--json")
    (check,) = (check for check in audited.json["checks"] if check["name"] == "not_text")
    assert check["verdict"] == "look"
    for name, kind in ((way.__name__, kind) for way, kind in told.items()):
        assert f"source {name!r}: {kind} in " in built
        assert f"source {name!r}: {kind} in " in planned
        assert f"documents looked at, such as 0.md: record 0. {KINDS[kind][1]}" in built
        assert re.search(
            rf"{name}: {kind} in .* such as \d+.md@.* row 0. {re.escape(KINDS[kind][1])}", check["summary"]
        )
    for words in (
        "files of prose: without a record: a.jsonl, b.csv",
        f"files of prose: left out: .c.jsonl, .d/e.jsonl: {HIDDEN}",
        r'read as one document each, such as undivided.txt (has "\r\n\r\n"). Correct `separator`',
    ):
        assert words in built
        assert words in planned
    assert "source 'prose'" not in built
    assert "prose" not in check["summary"]

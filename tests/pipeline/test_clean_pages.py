"""The cleaning pages: the numbers of the report, hostile documents that run nothing, and a size that is bounded."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pipeline.builder.clean_report.charts import count_columns, plot_measure
from pipeline.builder.clean_report.differences import PART_CHARACTERS, cut_parts, mark_differences
from pipeline.builder.clean_report.pages import render_pages
from pipeline.builder.clean_report.read import read_clean_report
from pipeline.builder.clean_report.wording import describe_unread
from pipeline.clean.drops.table import SourceDrops
from pipeline.engine.checksums import seal, unseal
from pipeline.recipe.presets import Gopher
from shards.terminal.display import printable
from tests.support.builds import build_here, real_documents
from tests.support.chromium import Page, find_chromium, run_chromium
from tests.support.html import Html
from tokenmill.__main__ import main

ATTACK = (
    "<script>window.ran=1;document.title='x'</script> </script></pre></style></title> <img src=y onerror=window.ran=2> "
    "<a href='javascript:window.ran=3'>x</a> <iframe src=https://example.com></iframe> <svg onload=window.ran=4> "
    "&lt;b&gt; {{ 7*7 }} {% raw %} --> ]]> \x00\x07\x1b[31m \u202ereversed \u2028 e\u0301\u0301\u0301 \ufffe "
) + "L" * 90
SECRET = "only the page with this address says vermilion"
ITEM = "Which of these planets did the astronomers of the old observatory find first with their new glass and when"
KEPT = ("min_words", "max_words", "max_mean_word_chars")
OFF = "".join(f"\n{key} = 'off'" for key in Gopher.limit_keys() if key not in KEPT)
RECIPE = f"""
name = "pages"
[[sources]]
name = "hostile"
paths = ["hostile.jsonl"]
weight = 1
[sources.clean.gopher]
min_words = 25
max_dropped = 1{OFF}
[sources.clean.personal_data]
action = "drop"
max_dropped = 1
[[sources]]
name = "plain"
paths = ["plain.jsonl"]
weight = 1
[clean.near_duplicates]
action = "drop"
max_dropped = 1
[[evaluations]]
name = "planets"
paths = ["items.jsonl"]
text = "question"
max_dropped = 1
[tokenizer]
vocab_size = 400
sample_bytes = "100 KB"
[mix]
when_short = "shrink"
[split]
val_tokens = 3_000
[shards]
tokens = 100_000
"""


def write_lines(path: Path, texts: list[str], key: str = "text") -> None:
    path.write_text("".join(json.dumps({key: text}) + "\n" for text in texts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built set whose documents attack the pages, on every page that shows documents; and its pages."""
    folder = tmp_path_factory.mktemp("pages")
    prose = real_documents()
    words = " ".join(prose[:80]).split()
    near = [" ".join([ATTACK, *words[place : place + 150], str(place)]) for place in range(0, 3000, 150)]
    hostile = [f"{ATTACK} {number}" for number in range(30)]  # these fall by min_words
    hostile += [f"{ATTACK} {' '.join(words[:20])} {number}" for number in range(5)]  # these just stay
    hostile += near + [text + " at the end" for text in near] + [f"{text} {ITEM} {ATTACK}" for text in prose[100:104]]
    hostile += [f"{SECRET} someone@real-name.org {number}" for number in range(3)]
    write_lines(folder / "hostile.jsonl", hostile + prose[300:500])
    write_lines(folder / "plain.jsonl", prose[500:700])
    write_lines(folder / "items.jsonl", [f"{ITEM} </pre><script>window.ran=5</script>"], "question")
    (folder / "recipe.toml").write_text(RECIPE)
    build_here(folder / "recipe.toml", folder / "set")
    assert main(["clean-report", str(folder / "set.work"), "--html", str(folder / "pages")]) == 0
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    found = read_clean_report(str(folder / "set"))
    return found | {"steps": [source | {"drops": asdict(source["drops"])} for source in found["steps"]]}


def with_tables(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report from its JSON values, as `read_clean_report` gives it."""
    table = TypeAdapter(SourceDrops).validate_python
    return report | {"steps": [source | {"drops": table(source["drops"])} for source in report["steps"]]}


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Html]:
    return {path.name: Html(path.read_text(encoding="utf-8")) for path in (folder / "pages").iterdir()}


ALLOWED = """
    a b body code dd desc div dl dt em figcaption figure h1 h2 h3 h4 head header html i li line link main mark meta nav
    ol p path pre rect section span style svg table tbody td text th thead title tr wbr
"""


def test_pages_hold_only_what_their_templates_do(folder: Path, pages: dict[str, Html]) -> None:
    assert set(pages) == {
        "index.html",
        "1-hostile.html",
        "1-hostile.gopher.min_words.html",
        "1-hostile.gopher.max_mean_word_chars.html",
        "1-hostile.near-duplicates.html",
        "2-plain.html",
        "2-plain.near-duplicates.html",
        "test-1-planets.html",
    }
    linked: set[str] = set()
    for name, page in pages.items():
        assert set(page.tags) <= set(ALLOWED.split()), name
        assert (page.tags["style"], page.tags["link"], page.tags["meta"]) == (1, 1, 7)
        ids = [value for _, attribute, value in page.attributes if attribute == "id"]
        assert len(ids) == len(set(ids))
        policies = [value for tag, key, value in page.attributes if (tag, key) == ("meta", "content")]
        assert any(value and value.startswith("default-src 'none'; style-src 'sha256-") for value in policies)
        for tag, attribute, value in page.attributes:
            assert attribute not in ("src", "style", "srcset", "action"), (tag, value)
            assert not attribute.startswith("on"), (tag, attribute)
        for link in page.links:
            assert link in pages or link.removeprefix("#") in ids, (name, link)
        linked |= set(page.links)
        text = (folder / "pages" / name).read_text(encoding="utf-8")
        assert printable(text, keep="\n\t\u200c\u200d") == text, name
    assert linked & set(pages) == set(pages)


def test_every_text_is_shown_as_it_is(report: dict[str, Any], pages: dict[str, Html]) -> None:
    def shown(text: str) -> str:
        return printable(text, keep="\n\t\u200c\u200d")

    limits = [limit for limit in report["sources"][0]["limits"] if limit["every"]["documents"]]
    assert len(limits) == 2
    for limit in limits:
        examples = [item for name in ("random", "fallen", "left") for item in limit[name]]
        blocks = pages[f"1-hostile.gopher.{limit['key']}.html"].blocks
        assert [block.removesuffix(" …") for block in blocks] == [shown(item["text"]) for item in examples]
        assert any("<script>window.ran=1" in block for block in blocks)
    assert [len(limits[0][name]) for name in ("random", "fallen", "left")] == [20, 20, 20]
    (near, _) = report["near_duplicates"]["sources"]
    pairs = [*near["shown"], *near["nearest"]]
    blocks = pages["1-hostile.near-duplicates.html"].blocks
    assert len(pairs) > 20
    assert len(blocks) == 2 * len(pairs)
    for pair, dropped, kept in zip(pairs, blocks[::2], blocks[1::2], strict=True):
        for end, block in (("dropped", dropped), ("kept", kept)):
            assert block.removeprefix("…\n").removesuffix(" …") == shown(pair["part"][end])
    (evaluation,) = report["evaluations"]
    copies = evaluation["held"]
    assert len(copies) == 4
    assert copies[0]["item_text"] == f"{ITEM} </pre><script>window.ran=5</script>"
    blocks = pages["test-1-planets.html"].blocks
    for copy, item, document in zip(copies, blocks[::2], blocks[1::2], strict=True):
        assert item == shown(copy["item_text"])
        found = copy["found"]
        assert document == shown(found["before"]) + shown(found["hit"]) + shown(found["after"])
        assert ITEM in found["hit"]


def test_personal_data_is_counted_and_not_shown(folder: Path, report: dict[str, Any], pages: dict[str, Html]) -> None:
    source = report["steps"][0]
    step = source["drops"]["steps"]["personal data"]
    assert (step["before_encoding"], step["reasons"]["personal data: email"]["first"]["documents"]) == (True, 3)
    assert [item["text"] for item in source["examples"]] == [""] * 3
    assert "vermilion" not in json.dumps(report)
    for path in (folder / "pages").iterdir():
        assert "vermilion" not in path.read_text(encoding="utf-8")
    (row,) = [row for row in pages["index.html"].rows if row[0].startswith("personal data")]
    assert row[:2] == ["personal data before encoding", "3"]


def test_the_numbers_are_those_of_the_report(report: dict[str, Any], pages: dict[str, Html]) -> None:
    def number(value: int) -> str:
        return f"{value:,}"

    rows = pages["index.html"].rows
    drops = report["steps"][0]["drops"]
    lines = drops["read"]["documents"] + 3
    mine = rows[1 : next(place for place, row in enumerate(rows) if row[0] == "left") + 1]
    assert mine[0] == ["hostile", number(lines), "", number(drops["read"]["tokens"]), "", ""]
    assert mine[-1][1] == number(drops["left"]["documents"])
    assert mine[-1][3] == number(drops["left"]["tokens"])
    dropped = [row for row in mine[1:-1] if "reported" not in row[0]]
    assert sum(int(row[1].replace(",", "")) for row in dropped) == lines - drops["left"]["documents"]
    held = next(row for row in mine if row[0].startswith("holds an item of planets"))
    assert held[0].endswith("reported, not dropped")
    assert held[1] == number(report["evaluations"][0]["documents"]["hostile"])
    gone = sum(drop["first"]["documents"] for drop in drops["steps"]["gopher"]["reasons"].values())
    (gopher,) = [row for row in mine if row[0] == "gopher"]
    assert gopher[1] == number(gone)
    assert gopher[5] == number(drops["steps"]["gopher"]["every"]["documents"])
    (near,) = [row for row in mine if row[0] == "near-duplicate"]
    found = [drop["first"] for drop in drops["steps"]["near-duplicate"]["reasons"].values()]
    assert near[1:4:2] == [number(sum(one[name] for one in found)) for name in ("documents", "tokens")]

    (cleaned,) = report["sources"]
    table = {row[0]: row for row in pages["1-hostile.html"].rows if len(row) == 9}
    for limit in cleaned["limits"]:
        every, read = limit["every"], cleaned["read"]
        assert table[limit["reason"]][1:] == [
            f"{limit['value']:g}",
            number(every["documents"]),
            f"{every['documents'] / read['documents']:.2%}",
            number(every["tokens"]),
            f"{every['tokens'] / read['tokens']:.2%}",
            number(limit["first"]["documents"]),
            number(limit["alone"]["documents"]),
            ", ".join(f"{number(other['documents'])} at {other['value']:g}" for other in limit["others"]),
        ]
    reasons = {row[0]: row for row in pages["1-hostile.html"].rows if len(row) == 6}
    for step in drops["steps"].values():
        for reason, drop in step["reasons"].items():
            documents, tokens = drop["first"]["documents"], drop["first"]["tokens"]
            shown = [number(documents), "" if step["before_encoding"] else number(tokens)]
            row = next((row for head, row in reasons.items() if head == reason or head.startswith(f"{reason} ")), [])
            assert not documents or row[1:4:2] == shown


def test_the_terminal_shows_the_same_steps(
    folder: Path, pages: dict[str, Html], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clean-report", str(folder / "set.work")]) == 0
    printed = [line.split() for line in capsys.readouterr().out.split("\n\n")[0].splitlines()]
    for row in pages["index.html"].rows:
        if row[0].startswith(("gopher", "near-duplicate", "left", "personal data")):
            numbers = [row[1], row[2].replace(" ", ""), *row[3:4]]
            name = row[0].split()[0]
            assert any(line[1:2] == [name] and set(numbers) - {""} <= set(line) for line in printed), row


def test_no_page_is_huge_whatever_the_documents(report: dict[str, Any]) -> None:
    """The worst text: every second character is spelt out and marked."""
    worst = "\x1b&" * 750
    text = json.loads(
        json.dumps(report), object_hook=lambda value: value | dict.fromkeys(value.keys() & {"text"}, worst)
    )
    for source in text["near_duplicates"]["sources"]:
        for pair in (*source["shown"], *source["nearest"]):
            pair["part"] |= {"dropped": ("\x1b&" * 600)[:PART_CHARACTERS], "kept": "&\x07" * 600}
    for name, page in render_pages(with_tables(text)):
        assert len(page.encode()) < 2_000_000, name
    for name, page in render_pages(with_tables(report)):
        assert len(page.encode()) < 300_000, name


def test_pages_are_replaced_and_nothing_else_is(
    folder: Path, report: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["clean-report", str(folder / "set"), "--html"]
    out = tmp_path / "pages"
    assert main([*command, str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == report["steps"]
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert before == {path.name: path.read_bytes() for path in (folder / "pages").iterdir()}
    (out / "9-gone.html").write_bytes(before["2-plain.html"])  # of an earlier report
    (out / "mine.html").write_text("mine")
    assert main([*command, str(out)]) == 0
    assert f"{out / 'index.html'}: 8 pages, " in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {*before, "mine.html"}
    (out / "2-plain.html").write_text("mine")
    assert main([*command, str(out)]) == 2
    assert "2-plain.html: not written by clean-report, so not replaced" in capsys.readouterr().err
    assert (out / "2-plain.html").read_text() == "mine"
    assert main([*command, str(folder / "set/pages")]) == 2
    assert "inside the set's own folder" in capsys.readouterr().err


def test_a_changed_evaluation_file_shows_no_wrong_item(folder: Path) -> None:
    path = folder / "items.jsonl"
    before = path.read_bytes()
    try:
        path.write_bytes(before.replace(b"planets", b"comets!"))
        (evaluation,) = read_clean_report(str(folder / "set"))["evaluations"]
        assert "has changed since the build" in evaluation["items_unread"]
        assert {copy["item_text"] for copy in evaluation["held"]} == {None}
        path.unlink()
        found = read_clean_report(str(folder / "set"))
        assert "items.jsonl" in found["evaluations"][0]["items_unread"]
        page = Html(dict(render_pages(found))["test-1-planets.html"])
        assert page.blocks[::2] == ["not shown"] * 4
    finally:
        path.write_bytes(before)


def test_each_document_of_a_pair_or_a_copy_has_its_hash(report: dict[str, Any], folder: Path) -> None:
    (near, _), (evaluation,) = report["near_duplicates"]["sources"], report["evaluations"]
    pairs = [pair[end]["hash"] for pair in (*near["shown"], *near["nearest"]) for end in ("dropped", "kept")]
    copies = [copy["hash"] for copy in evaluation["held"]]
    for name, hashes in (("1-hostile.near-duplicates.html", pairs), ("test-1-planets.html", copies)):
        page = (folder / "pages" / name).read_text(encoding="utf-8")
        assert re.findall('<code class="hash">([0-9a-f]{32})</code>', page) == hashes
        assert page.count("tokenmill trace SET --hash HASH") == 1
    assert "1 of 1 item is in 4 documents, which stay.\n0 items are too short" in page
    excused = {"item": "a<b>.jsonl", "item_row": 7, "words": 9, "documents": 1234, "held": 0}
    evaluation = evaluation | {"too_short": 1, "excused": 1, "excused_items": [excused], "documents": {"hostile": 1}}
    page = dict(render_pages(with_tables(report | {"evaluations": [evaluation]})))["test-1-planets.html"]
    assert "in 1 document, which stays.\n1 item is too short to search for. Common phrases of 1 item do not" in page
    assert "<code>a&lt;b&gt;.jsonl</code> row 7</th><td>9</td><td>1,234</td><td>0</td>" in page


def test_a_source_read_in_part_is_named_beside_the_items_found(
    report: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "Only a part of plain was read. "
    assert (report["unread"], describe_unread([])) == ([], "")
    path = folder / "set.work/last-build.json"
    before = path.read_bytes()
    try:
        path.write_bytes(seal(unseal(before) | {"has_more": [False, True]}))
        assert main(["clean-report", str(folder / "set.work")]) == 0
        assert said in capsys.readouterr().out
        pages = dict(render_pages(read_clean_report(str(folder / "set.work"))))
    finally:
        path.write_bytes(before)
    assert [name for name, page in pages.items() if said in page] == ["index.html", "test-1-planets.html"]
    assert main(["clean-report", str(folder / "set.work")]) == 0
    assert "Only a part of" not in capsys.readouterr().out


def test_a_browser_runs_nothing_and_everything_fits(folder: Path, tmp_path: Path) -> None:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("no Chromium is installed: the pages are not opened in a browser")
    foreign = "document.querySelectorAll('script, img, iframe, object, embed, form, input, base, svg a').length"
    with run_chromium(chromium, tmp_path / "profile") as browser:
        for path in sorted((folder / "pages").glob("*.html")):
            for width in (1280, 390):
                page = Page(browser, path.as_uri(), width=width, dark=width == 390)
                assert page.requests() == [path.as_uri()]
                assert page.complaints() == []
                assert page.evaluate("typeof window.ran") == "undefined"
                assert page.evaluate(foreign) == 0
                assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path.name, width)
                wide = "[...document.querySelectorAll('pre')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
                assert page.evaluate(wide) == 0, (path.name, width)
        # That what is looked for would be seen: the same text, not escaped.
        bad = tmp_path / "bad.html"
        bad.write_text(f"<p>{ATTACK}")
        page = Page(browser, bad.as_uri(), width=390)
        assert page.evaluate("window.ran") in (1, 2, 4)
        assert page.evaluate(foreign) > 1


@given(st.text("ab \n.", max_size=60), st.text("ab \n.", max_size=60), st.booleans())
@example("a b c", "a c", False)
def test_marked_texts_are_the_texts(first: str, second: str, cut: bool) -> None:
    pieces = mark_differences(first, second, cut=cut)
    assert ["".join(text for text, _ in own) for own in pieces] == [first, second]
    same = ["".join(text for text, differs in own if not differs) for own in pieces]
    if not cut:
        assert same[0] == same[1]
        assert any(differs for own in pieces for _, differs in own) == (first != second)


def test_the_part_that_is_shown_has_the_first_difference() -> None:
    lines = "".join(f"line {number}\n" for number in range(1000))
    changed = lines.replace("line 700\n", "line of another kind\n")
    start, first, second = cut_parts(lines, changed)
    assert lines[start - 1] == "\n"
    assert first == lines[start : start + PART_CHARACTERS]
    assert "line 700\n" in first
    assert "another kind" in second
    assert cut_parts(lines, lines)[0] == 0
    assert cut_parts("short", "short too") == (0, "short", "short too")
    assert cut_parts("x" * 5000, "x" * 4000 + "y")[0] == 4000 - 240


def test_columns_count_every_document_on_its_side_of_the_limit() -> None:
    random_ = random.Random(4)
    for most in (1.0, 300.0, 1e6):
        read = sorted((random_.random() ** 3 * most, random_.randrange(1, 50)) for _ in range(200))
        edges = [0.0, *(most / 40 * place for place in range(1, 42))]
        cut = edges[10]
        assert sum(count_columns(read, edges)) == pytest.approx(sum(count for _, count in read))
        # The bin that the limit divides begins below it, and all its documents that are left are above.
        beyond = [(low, count) for low, count in read if low >= 0.98 * cut]
        left = count_columns(beyond, edges, least=cut)
        assert not any(left[:10])
        assert sum(left) == pytest.approx(sum(count for _, count in beyond))
        limit = {"key": "min_x", "side": "min", "value": cut, "every": {"documents": 1}}
        for width in (720.0, 342.0):
            chart = plot_measure("x", read, read, [limit], width)
            xs = [float(given[name]) for _, given, _ in chart.marks for name in ("x", "x1") if name in given]
            assert all(0 <= x <= width for x in xs)
            (label,) = [text for _, given, text in chart.marks if given.get("class") == "limit-label"]
            assert label == f"min {cut:g}"
    plot_measure("nothing", [], [], [{"key": "max_x", "side": "max", "value": 0, "every": {"documents": 0}}], 342.0)

"""The report: facts as the manifest and plain counting give them; foreign text that runs nothing, in a real browser."""

import dataclasses
import json
import re
import shutil
from collections import Counter

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from shards.audit.audit import AUDIT_VERSION, audit
from shards.format import writer
from shards.format.manifest import MANIFEST_FILE
from shards.format.reader import open_set
from shards.format.vocabulary import read_vocabulary
from shards.report.render import code_cell, code_span, fence, render_card, render_page, sentence
from shards.report.write import is_audited, report_to_dict, write_report
from shards.terminal.display import printable
from shards.validation.validate import validate
from tests.support.builds import call_here, read_json
from tests.support.html import Html
from tests.support.shard_sets import Plan, files_of, write_set

HOSTILE_NAME = '"><img src=x onerror=window.ran=1> [x](javascript:alert(1)) `|` {{ 7*7 }} \u202eevil\x1b[31m'
HOSTILE_SOURCE = "</title></svg></style><script>window.ran=2</script>" + "W" * 200
HOSTILE_TOKEN = "<|x|><script>window.ran=3</script>"
HOSTILE_TEXT = (
    b"<script>window.ran=4;document.title='changed'</script> </script> </pre> <img src=y onerror=\"window.ran=5\"> "
    b"<a href='javascript:window.ran=6'>x</a> <iframe src=https://example.com></iframe> <style>*{color:red}</style> "
    b"&lt;b&gt; {{ 7*7 }} {% raw %} ]]> --> ```\n# heading\n````\n|a|b| \xff\xfe lone \x00\x07 \xe2\x80\xaereversed "
    b"<meta http-equiv=refresh content=0;url=https://example.com> "
) + b"L" * 120

LICENSES = {"prose": "CC-BY-4.0", HOSTILE_SOURCE: '"><img src=z onerror=window.ran=7>'}


@pytest.fixture(scope="module")
def report(good_set, tmp_path_factory):
    """Return the report of the good set."""
    folder = tmp_path_factory.mktemp("report")
    return write_report(good_set, out=folder / "report", audit=folder / "audit")


@pytest.fixture(scope="module")
def hostile(_shared_plan, tmp_path_factory):
    """Return the report of a set whose every name and many of whose documents attack the page and the card."""
    folder = tmp_path_factory.mktemp("hostile")
    write_hostile_set(folder / "set", _shared_plan)
    return write_report(folder / "set")


def write_hostile_set(folder, plan: Plan):
    """Write the good set with hostile names of set, source, token, recipe and units, and hostile documents."""
    vocabulary = json.loads(plan.tokenizer)
    vocabulary["added_tokens"][1]["content"] = HOSTILE_TOKEN
    entries = read_vocabulary(plan.tokenizer.encode()).entries
    table = {bytes_: token for token, bytes_ in enumerate(entries) if len(bytes_) == 1}
    attack = np.array([table[bytes([byte])] for byte in HOSTILE_TEXT], "<u2")

    def attack_code(document):
        if document.source != "code":
            return document
        room = min(len(attack), len(document.tokens) - 1)
        tokens = np.concatenate([attack[:room], document.tokens[room:]])
        return dataclasses.replace(document, tokens=tokens, source=HOSTILE_SOURCE, unit=HOSTILE_NAME)

    documents = {
        split: [[attack_code(document) for document in shard] for shard in shards]
        for split, shards in plan.documents.items()
    }
    weights = {"prose": 3.0, HOSTILE_SOURCE: 1.0}
    sources = [
        {"name": name, "kind": "hub", "repo": f"owner/{number}", "license": LICENSES[name], HOSTILE_NAME: HOSTILE_NAME}
        for number, name in enumerate(weights)
    ]
    hostile = dataclasses.replace(
        plan,
        documents=documents,
        tokenizer=json.dumps(vocabulary),
        weights=weights,
        epochs=dict.fromkeys(weights, 1),
        recipe=json.dumps({"name": HOSTILE_NAME, "sources": sources}),
    )
    manifest = write_set(folder, hostile)
    changed = manifest.sources[1].model_copy(update={"revision": HOSTILE_NAME, "dropped": {HOSTILE_NAME: 3}})
    manifest = manifest.model_copy(update={"name": HOSTILE_NAME, "sources": [manifest.sources[0], changed]})
    writer.write_entry(folder / MANIFEST_FILE, manifest.to_json())


ALLOWED = """
    a article blockquote body circle code dd desc details div dl dt em figcaption figure footer h1 h2 h3 head header
    html i li line link main mark meta nav ol p path pre rect section span style summary svg table tbody td text tfoot
    th thead title tr ul
"""


def check_harmless(html):
    """Check that a page holds only what its template does."""
    found = Html(html)
    assert set(found.tags) <= set(ALLOWED.split())
    assert (found.tags["style"], found.tags["link"], found.tags["meta"]) == (1, 1, 6)
    for tag, name, value in found.attributes:
        assert name not in ("src", "style", "srcset", "action"), (tag, value)
        assert not name.startswith("on"), (tag, name, value)
        if name == "href":
            assert value.startswith("#") or (tag, value) == ("link", "data:,")
    return "".join(found.text)


def test_facts_are_the_manifests_and_samples_the_documents(report, good_set, plan):
    manifest = open_set(good_set).manifest
    facts = report_to_dict(report)
    assert (facts["name"], facts["tokens"]) == ("set", sum(shard.tokens for shard in manifest.shards))
    assert facts["bytes"] == sum(file.stat().st_size for file in good_set.iterdir())
    for stated, row in zip(facts["sources"], manifest.mix, strict=True):
        assert (stated["name"], stated["places"], stated["license"]) == (row.source, [f"{row.source}-*.json"], None)
        own = [d for part in plan.documents["train"] for d in part if d.source == row.source]
        text, tokens = sum(len(d.text) for d in own), sum(len(d.tokens) for d in own)
        assert facts["bytes_per_token"]["sources"][row.source] == pytest.approx(text / tokens)
    counts = np.bincount(np.concatenate([d.tokens for part in plan.documents["train"] for d in part]), minlength=300)
    parts = [report.vocabulary[name] for name in ("seen", "never_seen", "unseen_bytes", "special")]
    assert sum(parts) == report.vocabulary["ids"] == len(counts)
    assert report.vocabulary["seen"] == (counts > 0).sum() - 1, "all but EOS"
    page = check_harmless((report.out / "index.html").read_text(encoding="utf-8"))
    rows = [row["train"].tokens for row in report.sources] + [shard.tokens for shard in manifest.shards]
    for number in (facts["tokens"], facts["documents"], *rows):
        assert f"{number:,}" in page
    assert validate(good_set, level="quick").ok
    for name in ("prose", "code"):
        assert len(report.samples[name]) == 2
        for sample in report.samples[name]:
            document = plan.documents["train"][int(sample["place"].shard[-1])][sample["place"].document]
            text = document.text.decode()
            assert (document.source, sample["text"], sample["whole"]) == (name, text[:700], len(text) <= 700)


def test_same_set_gives_same_bytes(report, good_set, tmp_path):
    copy = tmp_path / "another-name"
    shutil.copytree(good_set, copy)
    shutil.copytree(report.out.parent / "audit", tmp_path / "another-name.audit")
    again = write_report(copy, workers=2)
    assert again.out == tmp_path / "another-name.report"
    assert files_of(again.out) == files_of(report.out)
    assert files_of(again.out).keys() == {"README.md", "index.html"}
    assert validate(copy, level="quick").ok


def test_hostile_page_holds_nothing_foreign(hostile):
    page = (hostile.out / "index.html").read_text(encoding="utf-8")
    text = check_harmless(page)
    assert "<script>window.ran=4;document.title='changed'</script> </script> </pre>" in text
    assert "{{ 7*7 }} {% raw %} ]]> --> ```\n# heading\n````\n|a|b| \\xff\\xfe lone \\x00\\x07 \\u202ereversed" in text
    assert "&lt;b&gt;" in text
    assert printable(HOSTILE_NAME) in text
    assert HOSTILE_SOURCE in text
    assert HOSTILE_TOKEN in text
    assert not re.search("[\u202e\x00\x07\x1b\ud800-\udfff]", page)


def test_hostile_card_parses_and_holds_no_markup(hostile):
    card = (hostile.out / "README.md").read_text(encoding="utf-8")
    _, front, body = card.split("---\n", 2)
    header = yaml.safe_load(front)
    assert header["pretty_name"] == HOSTILE_NAME
    assert (header["license"], header["license_name"]) == ("other", ", ".join(LICENSES.values()))
    assert header["source_datasets"] == ["owner/0", "owner/1"]
    files = [{"split": "train", "path": "train-*.docs.parquet"}, {"split": "validation", "path": "val-*.docs.parquet"}]
    assert header["configs"] == [{"config_name": "documents", "data_files": files}]
    assert not re.search("[\u202e\x00\x07\x1b\ud800-\udfff]", card)
    tokens = render(body)
    inline = [child for token in tokens for child in token.children or []]
    kinds = {token.type for token in (*tokens, *inline)}
    assert not kinds & {"html_block", "html_inline", "link_open", "image"}
    assert sum(token.type == "heading_open" for token in tokens) == 9
    mix = Counter(token.type for token in render(f"## Mix{card.split('## Mix')[1].split('## Sources')[0]}"))
    assert (mix["tr_open"], mix["th_open"], mix["td_open"]) == (3, 7, 14)
    spans = [child.content for child in inline if child.type == "code_inline"]
    assert printable(HOSTILE_NAME) in spans
    assert HOSTILE_SOURCE in spans
    assert HOSTILE_TOKEN in spans


@pytest.mark.parametrize("name", ["README.md", "index.html"])
def test_files_that_are_not_a_reports_stay(report, good_set, tmp_path, name):
    out = shutil.copytree(report.out, tmp_path / "out")
    audit = report.out.parent / "audit"
    arguments = ["report", good_set, "--out", out, "--audit", audit]
    assert call_here(*arguments, "--json", expect=0).json["out"] == str(out)
    (out / name).write_text("# my own project\n")
    before = files_of(out)
    told = f"{name}: no report wrote this file, so it is not overwritten. Give another place"
    assert told in call_here(*arguments, expect=2).stderr
    assert files_of(out) == before


def test_card_tells_no_private_folder(report):
    places = {
        "/home/anna/corpus/part-*.parquet": "`…/part-*.parquet`",
        "~anna/notes.txt": "`…/notes.txt`",
        "data/../../anna/more.jsonl": "`…/more.jsonl`",
        "file:///home/anna/url.jsonl": "`…/url.jsonl`",
        "zip://*.csv::file:///home/anna/all.zip": "`…/all.zip`",
        "zip://*.csv::/home/anna/all.zip": "`…/all.zip`",
        "s3://bucket/home/x.parquet": "`s3://bucket/home/x.parquet`",
        "corpus/x.parquet": "`corpus/x.parquet`",
    }
    dropped = {"in block list /home/anna/blocked.parquet": 2, "too short": 1}
    entry = report.sources[0]["entry"].model_copy(update={"dropped": dropped})
    source = report.sources[0] | {"places": list(places), "entry": entry}
    contents = dataclasses.replace(report, sources=[source])
    card, page = render_card(contents), render_page(contents)
    assert "anna" not in card
    assert f"| {', '.join(dict.fromkeys(places.values()))} (files) |" in card
    assert "2 in block list …/blocked\\.parquet, 1 too short" in card
    for place in (*places, "/home/anna/blocked.parquet"):
        assert place in page


def render(markdown):
    """Return a Markdown text's tokens."""
    return MarkdownIt("commonmark").enable("table").parse(markdown)


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=st.sampled_from("`|\\<>&*_[]()!#-~$@:. a\n\x1b\u202eé中") | st.characters(), max_size=20))
def test_any_text_stays_text_in_markdown(text):
    (paragraph,) = [token for token in render(f"x {code_span(text)}") if token.type == "inline"]
    assert [child.content for child in paragraph.children] == ["x ", printable(text) or " "]
    (cell,) = [token for token in render(f"| x |\n|---|\n| {code_cell(text)} |") if token.type == "inline"][1:]
    assert [(child.type, child.content) for child in cell.children] == [("code_inline", printable(text) or " ")]
    (cell,) = [token for token in render(f"| x |\n|---|\n| .{sentence(text)}. |") if token.type == "inline"][1:]
    assert "".join(child.content for child in cell.children) == f".{printable(text)}."
    assert {child.type for child in cell.children} <= {"text", "text_special"}
    (block,) = render(fence(text, "text"))
    assert (block.type, block.info, block.content) == ("fence", "text", printable(text, keep="\n\t\u200c\u200d") + "\n")


def test_audit_of_other_rules_is_made_again(good_set, tmp_path):
    shard_set = open_set(good_set)
    audit(good_set, out=tmp_path)
    assert is_audited(shard_set, tmp_path)
    stored = read_json(tmp_path / "audit.json")
    stale = [stored | {"audit_version": AUDIT_VERSION - 1}, stored | {"manifest_sha256": "0" * 64}]
    stale += [{key: stored[key] for key in stored.keys() - {lost}} for lost in stored.keys() - {"shards", "one_in"}]
    for other in stale:
        (tmp_path / "audit.json").write_text(json.dumps(other))
        assert not is_audited(shard_set, tmp_path)

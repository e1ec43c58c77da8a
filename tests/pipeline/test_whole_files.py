"""Files of one document: the text of HTML pages, whatever they hold, and the cells of notebooks."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.records import find_changes, name_parts
from pipeline.encode.encode import EncodeTask
from pipeline.engine.tasks import digest_of_payload
from pipeline.sources import base
from pipeline.sources.base import MALFORMED, SourceError, make_units
from pipeline.sources.formats import html_page
from pipeline.sources.formats.whole_file import take_text
from shards.errors import MissingExtraError
from tests.support.reading import files_source, list_spans_of, read_batches, texts_of

IMAGE = "data:image/png;charset=utf-8;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * 40 + "=="
PAGE = f"""<!DOCTYPE html><html><head><title>The lighthouse</title><style>p {{color: red}}</style>
<script>var a = "<p>not this</p>";</script></head><body><nav><a href="/">Home</a> <a href="/about">About us</a></nav>
<article><h1>The lighthouse</h1><p>The keeper wrote down what the sea had left on the stones: Café &amp; “bar”.</p>
<img src="{IMAGE}"><p>The owner of the lighthouse read it, and went on.</p><pre>if a &lt; b:
    pass</pre></article><footer>Copyright 2020.</footer></body></html>"""
TEXT = """The lighthouse
The keeper wrote down what the sea had left on the stones: Café & “bar”.
The owner of the lighthouse read it, and went on.
if a < b:
    pass"""


def declaring(encoding: str) -> str:
    return PAGE.replace("<head>", f"<head><meta http-equiv=Content-Type content='text/html; charset={encoding}'>")


MIXED = [f"Line {number} is about <code>tool{number}</code> and what it does for people." for number in range(4)]
"""Paragraphs, of which a page has some in elements other than `p`."""
PAGES: dict[str, tuple[bytes, str]] = {
    "paragraphs in other elements": (
        f"<p>A paragraph.</p>{''.join(f'<div>{line}</div>' for line in MIXED)}<p>Another one.</p>".encode(),
        "\n".join(
            ["A paragraph.", *(line.replace("<code>", "").replace("</code>", "") for line in MIXED), "Another one."]
        ),
    ),
    "utf-8": (PAGE.encode(), TEXT),
    "byte order mark": (PAGE.encode("utf-8-sig"), TEXT),
    "utf-16": (PAGE.encode("utf-16"), TEXT),
    "nothing declared": (PAGE.encode("cp1252"), TEXT),
    "latin-1, which browsers read as cp1252": (declaring("iso-8859-1").encode("cp1252"), TEXT),
    "declares utf-16 in ASCII": (declaring("utf-16").encode(), TEXT),
    "declares what nobody knows": (declaring("x-none").encode(), TEXT),
    "xml": (b'<?xml version="1.0" encoding="macroman"?>' + PAGE.encode("macroman"), TEXT),
    "title elsewhere": (PAGE.replace("<h1>The lighthouse</h1>", "").encode(), TEXT),
    "not closed": (PAGE.partition("</article>")[0].encode(), TEXT),
    "nested": (b"<div>" * 900 + PAGE.encode(), TEXT),
    "entities": (f'<!DOCTYPE html [<!ENTITY x SYSTEM "file://{__file__}">]>{PAGE}&x;'.encode(), TEXT),
    "plain": (b"Only words.", "Only words."),
    "anchor": (b'<h1>One<a class="headerlink" href="#">\xc2\xb6</a></h1><p>Two words.</p>', "One\nTwo words."),
    "data": (f"<p>See {IMAGE} here.</p>".encode(), "See  here."),
    "no text": (b"<html><head><title>Nothing</title></head><body><img src=a.png></body></html>", ""),
    "comment": (b"<!-- nothing -->", ""),
    "empty": (b"", ""),
    "NUL": (b"\0\0", ""),
    "nested too deeply": (b"<p>Before.</p>" + b"<div>" * 5000 + b"<p>Within.</p>", ""),
}


LONG = "Whoever reads the page finds each sentence of it, from the first to the last, in the order of the book. " * 3
BOOK = f"""<title>Sharing</title><div id="nav" class="navheader"><a href="/">Home</a></div>
<div class="section" id="files">
<div class="titlepage"><div><div><h2 class="title"><a id="x"></a>Sharing</h2></div></div></div>
<div class="para">
\t\tFiles are shared by the server, and the
\t\t<code>client</code>
\t\tasks for them. {LONG}<div class="url">See <a href="/a">the page</a>.</div>
\tIt ends.</div>
<div class="sidebar"><div class="titlepage"><p class="title">A word</p></div><div class="para">{LONG}</div></div>
{"".join(f"<p>{number} {LONG}</p>" for number in range(9))}
<div class="section" id="sharing-keys">
<div class="titlepage"><div><div><h3 class="title"><a id="y"></a>Keys</h3></div></div></div><pre>  one
    two</pre><p>{LONG}</p></div><div class="section">
<div class="titlepage"><div><div><h3 class="title"><a id="z"></a>Short</h3></div></div></div>
<p>It ends.</p></div></div>"""
"""As DocBook writes it, with names that menus have elsewhere."""
PAGES["a part of a book"] = (
    BOOK.encode(),
    f"""Sharing
Files are shared by the server, and the client asks for them. {LONG.strip()}
See the page.
It ends.
A word
{LONG.strip()}
{"".join(f"{number} {LONG.strip()}{chr(10)}" for number in range(9))}Keys
  one
    two
{LONG.strip()}
Short
It ends.""",
)


PAGES["a part of a manual"] = (
    f"""<div role="main"><h1>Bugs</h1><p>{LONG}</p>
<section id="handling-related-bugs"><span id="s"></span><h3>Related</h3>
<p><code><em><code>package</code></em></code> is replaced. {LONG}</p></section></div>""".encode(),
    f"Bugs\n{LONG.strip()}\nRelated\npackage is replaced. {LONG.strip()}",
)


def read(path: Path, data: bytes, **keys: Any) -> list[str]:
    path.write_bytes(data)
    return texts_of(read_batches(files_source(path, **keys)))


def test_the_text_of_a_page(tmp_path: Path):
    for kind, (page, expected) in PAGES.items():
        (text,) = read(tmp_path / "a.htm", page)
        assert (kind, re.sub(r"(?m)^.*Home.*\n", "", text)) == (kind, expected)
        assert not re.search(r"<[a-z/!]|base64|[\w+/]{200}|Copyright|not this", text), kind


def test_pages_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = "<meta charset=utf-8><p>Слова на странице.</p>".encode("koi8-r")
    assert read(tmp_path / "a.xhtml", page, encoding="koi8-r") == ["Слова на странице."]
    assert read(tmp_path / "b.html", page, format="file", encoding="koi8-r") == [page.decode("koi8-r")]
    path = tmp_path / "a.html"
    assert read(path, page, max_malformed=0.5) == []
    with pytest.raises(SourceError, match="record 0: is longer than 9 bytes"):
        read_batches(files_source(path, max_document_bytes=9))
    monkeypatch.setattr(html_page, "MOST_PAGE_BYTES", 40)
    with pytest.raises(SourceError, match="it has 45 bytes; at most 40 are parsed"):
        read_batches(files_source(path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"the package 'trafilatura' is not installed. Install it: .*html"):
        list_spans_of(files_source(path))


def test_other_pages_do_not_change_a_page(tmp_path: Path):
    """Also not in a process in which sets have another order: the libraries have caches, and look for duplicates."""
    kinds = ["utf-8", "nothing declared", "data", "utf-8"]
    for number, kind in enumerate(kinds):
        (tmp_path / f"{number}.html").write_bytes(PAGES[kind][0])
    script = "from tests.support.reading import *; print(ascii(texts_of(read_batches(files_source('*.html')))))"
    for seed in "12":
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == ascii([PAGES[kind][1] for kind in kinds])


def test_versions_of_libraries_count_where_pages_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tasks: list[EncodeTask] = []
    for name in ("a.html", "a.md"):
        (tmp_path / name).write_bytes(PAGE.encode())
        (unit,) = make_units(0, list_spans_of(source := files_source(tmp_path / name)))
        tasks.append(EncodeTask(unit, source, "", "", 0, "uint16"))
    found: list[tuple[list[str], dict[str, str]]] = []
    for release in "12":
        monkeypatch.setattr(base, "_versions", functools.cache(base._versions.__wrapped__))  # pyright: ignore[reportPrivateUsage, reportUnknownArgumentType]
        monkeypatch.setattr(base, "version", lambda library, release=release: f"{library} {release}")
        found.append(([*map(digest_of_payload, tasks)], name_parts(tasks)))
    digests, parts = zip(*found, strict=True)
    assert [before == after for before, after in zip(*digests, strict=True)] == [False, True]
    assert 'code.trafilatura = "trafilatura 2" (was "trafilatura 1")' in find_changes(*parts)


CELLS: list[dict[str, Any]] = [
    {"source": ["# Title\n", f"![](attachment:a.png) ![]({IMAGE})\n"], "attachments": {"a.png": {"image/png": IMAGE}}},
    {"source": "import json\n\njson.loads('1')", "outputs": [{"data": {"image/png": IMAGE}}]},
    {"cell_type": "raw", "source": ["raw"]},
    {"source": [], "outputs": []},
]
OLD = {"nbformat": 3, "worksheets": [{"cells": CELLS[:1]}, {"cells": [{"input": CELLS[1]["source"]}, *CELLS[2:]]}]}
NOTEBOOK = json.dumps({"cells": CELLS, "nbformat": 4}, indent=1)
JOINED = "# Title\n![](attachment:a.png) ![]()\n\nimport json\n\njson.loads('1')\n\nraw"
NOTEBOOKS = {
    NOTEBOOK: JOINED,
    f"\ufeff{NOTEBOOK}": JOINED,
    json.dumps(OLD): JOINED,
    '{"cells": [], "nbformat": 4}': "",
    "": "",
}
NO_NOTEBOOKS = (
    *('{"worksheets": [], "nbformat": 2}', '{"cells": [], "nbformat": 5}', '{"text": "a"}', "[1]", NOTEBOOK[:-9]),
    *(f'{{"cells": [{cell}], "nbformat": 4}}' for cell in ("1", '{"source": 1}', '{"source": "\\ud800"}', '"\udcff"')),
    '{"cells": ' + "[" * 100_000,
)


def test_the_cells_of_a_notebook(tmp_path: Path):
    path = tmp_path / "a.ipynb"
    assert [read(path, notebook.encode()) for notebook in NOTEBOOKS] == [[text] for text in NOTEBOOKS.values()]
    for text in NO_NOTEBOOKS:
        with pytest.raises(SourceError, match=r"^a\.ipynb: record 0: cannot be read as ipynb: .+\. Repair the file"):
            read(path, text.encode(errors="surrogateescape"))
        (batch,) = read_batches(files_source(path, max_malformed=1))
        assert (len(batch.text), batch.rejected) == (0, {MALFORMED: 1})


@pytest.mark.timeout(60)  # 2 s at most; by the square of the length, minutes or hours
@pytest.mark.parametrize(
    ("format_", "text", "lines"),
    [
        ("html", "".join(f"<h2>{number}</h2><div></div>{'Some words. ' * 5}" for number in range(8000)), 8001),
        ("html", f"<pre>The keeper{' ' * 1_000_000}wrote.</pre>", 1),
        ("ipynb", json.dumps({"nbformat": 4, "cells": [{"source": f"The keeper wrote data:{'A' * 1_000_000}."}]}), 1),
    ],
    ids=["headings", "spaces", "a word after `data:`"],
)
def test_the_time_does_not_grow_with_the_square_of_a_text(format_: str, text: str, lines: int):
    assert len(take_text(format_, text.encode(), "utf-8").splitlines()) == lines

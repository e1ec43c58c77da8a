"""Files of one document: the text of HTML pages, whatever they hold, and the cells of notebooks."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.records import find_changes, name_parts
from pipeline.encode.encode import EncodeTask
from pipeline.engine.tasks import digest_of_payload
from pipeline.sources import base
from pipeline.sources.base import MALFORMED, SourceError, make_units
from pipeline.sources.formats import html_page
from shards.errors import MissingExtraError
from tests.support.reading import files_source, list_spans_of, read_batches, texts_of

IMAGE = "data:image/png;charset=utf-8;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * 40 + "=="
STORY = [
    f"The {word} of the lighthouse wrote down what the sea had left on the stones." for word in ("keeper", "owner")
]
PAGE = f"""<!DOCTYPE html><html><head><title>The lighthouse</title><style>p {{color: red}}</style>
<script>var a = "<p>not this</p>";</script></head><body><nav><a href="/">Home</a> <a href="/about">About us</a></nav>
<article><h1>The lighthouse</h1>{"".join(f"<p>{text} Café &amp; “bar”.</p>" for text in STORY)}
<img src="{IMAGE}"><pre>if a &lt; b:\n    pass</pre></article><footer>Copyright 2020.</footer></body></html>"""
TEXT = "\n".join(["The lighthouse", *(f"{text} Café & “bar”." for text in STORY), "if a < b:\n    pass"])


def declaring(encoding: str) -> str:
    return PAGE.replace("<head>", f"<head><meta http-equiv=Content-Type content='text/html; charset={encoding}'>")


DEEP = "<p>Before.</p>" + "<div>" * 5000 + "<p>Within.</p>"
PAGES: dict[str, tuple[bytes, str]] = {
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
    "nested too deeply": (DEEP.encode(), ""),
}


def read(path: Path, data: bytes, **keys: Any) -> list[str]:
    path.write_bytes(data)
    return texts_of(read_batches(files_source(path, **keys)))


@pytest.mark.parametrize("kind", PAGES)
def test_the_text_of_a_page(kind: str, tmp_path: Path) -> None:
    page, expected = PAGES[kind]
    (text,) = read(tmp_path / "a.htm", page)
    assert [line for line in text.splitlines() if "Home" not in line] == expected.splitlines()
    assert not re.search(r"<[a-z/!]|base64|[\w+/]{200}|Copyright|not this", text)


def test_a_page_is_read_in_the_encoding_of_the_source(tmp_path: Path) -> None:
    page = "<meta charset=utf-8><p>Слова на странице.</p>".encode("koi8-r")
    assert read(tmp_path / "a.xhtml", page, encoding="koi8-r") == ["Слова на странице."]
    with pytest.raises(SourceError, match=r"^a\.html: record 0: cannot be read as html: 'utf-8' codec.*max_malformed"):
        read(tmp_path / "a.html", page)
    assert read(tmp_path / "a.html", page, max_malformed=0.5) == []
    assert read(tmp_path / "b.html", page, format="file", encoding="koi8-r") == [page.decode("koi8-r")]


def test_other_pages_do_not_change_a_page(tmp_path: Path) -> None:
    """Also not in a process in which sets have another order: the libraries have caches, and look for duplicates."""
    pages = [PAGES[kind][0] for kind in ("utf-8", "nothing declared", "title elsewhere", "data")]
    for number, page in enumerate([*pages, *pages[:2]]):
        (tmp_path / f"{number}.html").write_bytes(page)
    glob = str(tmp_path / "*.html")
    texts = texts_of(read_batches(files_source(glob)))
    assert texts[:2] == texts[4:] == [TEXT, TEXT]
    script = (
        "import sys; from tests.support.reading import *; found = texts_of(read_batches(files_source(*sys.argv[1:])));"
        "print(*map(ascii, found), sep='\\n')"
    )
    for seed in "12":
        command = [sys.executable, "-c", script, *(str(tmp_path / f"{number}.html") for number in (5, 3, 2))]
        done = subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == [ascii(texts[number]) for number in (2, 3, 5)]


def test_a_large_page_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.monotonic()
    (text,) = read(tmp_path / "a.html", f"<title>A</title>{'<p>One of many lines.</p>' * 50_000}".encode())
    assert "many lines" in text
    assert time.monotonic() - begun < 60
    monkeypatch.setattr(html_page, "MOST_PAGE_BYTES", 1000)
    with pytest.raises(SourceError, match=r"it has 1,\d\d\d,\d\d\d bytes; at most 1,000 are parsed"):
        read_batches(files_source(tmp_path / "a.html"))
    with pytest.raises(SourceError, match="record 0: is longer than 500 bytes"):
        read_batches(files_source(tmp_path / "a.html", max_document_bytes=500))


def test_versions_of_libraries_count_where_pages_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[EncodeTask] = []
    for name in ("a.html", "a.md"):
        (tmp_path / name).write_bytes(PAGE.encode())
        (unit,) = make_units(0, list_spans_of(source := files_source(tmp_path / name)))
        tasks.append(EncodeTask(unit, source, "", "", 0, "uint16"))
    digests: list[list[str]] = []
    parts: list[dict[str, str]] = []
    for release in ("1", "2"):
        monkeypatch.setattr(base, "_versions", functools.cache(base._versions.__wrapped__))  # pyright: ignore[reportPrivateUsage, reportUnknownArgumentType]
        monkeypatch.setattr(base, "version", lambda library, release=release: f"{library} {release}")
        digests.append([*map(digest_of_payload, tasks)])
        parts.append(name_parts(tasks))
    assert [before == after for before, after in zip(*digests, strict=True)] == [False, True]
    assert 'code.trafilatura = "trafilatura 2" (was "trafilatura 1")' in find_changes(*parts)


def test_without_trafilatura_its_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.html").write_bytes(PAGE.encode())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(metadata, "requires", lambda name: [])
    with pytest.raises(MissingExtraError, match=r"the package 'trafilatura' is not installed\. .*\[html\]"):
        list_spans_of(files_source(tmp_path / "a.html"))


CELLS: list[dict[str, Any]] = [
    {"cell_type": "markdown", "source": ["# Title\n", f"![](attachment:a.png) ![]({IMAGE})\n"]}
    | {"attachments": {"a.png": {"image/png": IMAGE}}},
    {"cell_type": "code", "source": "import json\n\njson.loads('1')", "outputs": [{"data": {"image/png": IMAGE}}]},
    {"cell_type": "raw", "source": ["raw"]},
    {"cell_type": "code", "source": [], "outputs": []},
]
NOTEBOOK = {"cells": CELLS, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
JOINED = "# Title\n![](attachment:a.png) ![]()\n\nimport json\n\njson.loads('1')\n\nraw"
OLD_CODE = {"cell_type": "code", "input": CELLS[1]["source"], "outputs": [{"png": IMAGE}]}
NOTEBOOKS: dict[str, tuple[bytes, str | None]] = {
    "4": (json.dumps(NOTEBOOK, indent=1).encode(), JOINED),
    "byte order mark": (json.dumps(NOTEBOOK).encode("utf-8-sig"), JOINED),
    "3": (
        json.dumps({"nbformat": 3, "worksheets": [{"cells": [CELLS[0], OLD_CODE]}, {"cells": CELLS[2:]}]}).encode(),
        JOINED,
    ),
    "no cells": (b'{"cells": [], "nbformat": 4}', ""),
    "2": (b'{"worksheets": [], "nbformat": 2}', None),
    "5": (b'{"cells": [], "nbformat": 5}', None),
    "another object": (b'{"text": "a"}', None),
    "a list": (b"[1]", None),
    "a number for a cell": (b'{"cells": [{"source": 1}], "nbformat": 4}', None),
    "half a character": (b'{"cells": [{"source": "\\ud800"}], "nbformat": 4}', None),
    "cut short": (json.dumps(NOTEBOOK).encode()[:-9], None),
    "nested": (b'{"cells": ' + b"[" * 100_000, None),
    "not UTF-8": (b'{"cells": [{"source": "\xff"}], "nbformat": 4}', None),
}


@pytest.mark.parametrize("kind", NOTEBOOKS)
def test_the_cells_of_a_notebook(kind: str, tmp_path: Path) -> None:
    data, expected = NOTEBOOKS[kind]
    path = tmp_path / "a.ipynb"
    if expected is not None:
        assert read(path, data) == [expected]
        return
    with pytest.raises(SourceError, match=r"^a\.ipynb: record 0: cannot be read as ipynb: .+\. Repair the file"):
        read(path, data)
    (batch,) = read_batches(files_source(path, max_malformed=1))
    assert (len(batch.text), batch.rejected) == (0, {MALFORMED: 1})
    assert read(path, b"") == []

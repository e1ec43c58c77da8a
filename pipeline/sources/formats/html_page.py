"""The text of an HTML page by trafilatura (the extra `html`): its title and its main content, without boilerplate.

The page alone decides its text: links, entities and scripts are not followed, and no earlier page counts. It reads
0.4 to 0.7 MB, or 11 pages, per second and core, and takes up to 200 bytes of memory per byte.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import itertools
import logging
import re
from typing import Any

from pipeline.recipe.key_values import normal_encoding
from pipeline.sources.formats.encodings import find_wide_encoding, is_utf8

MOST_PAGE_BYTES = 1 << 24
"""A larger page would take minutes, and over 3 GB of memory."""
_COMPARED_BYTES = 1 << 20
"""In larger pages trafilatura's result is not compared with those of other methods: it would take 20 s for 3 MB."""
_MOST_ELEMENTS = 1 << 15
"""Pages of more are not prepared: trafilatura's time could grow with the square of their number, to minutes."""
_DECLARED = re.compile(rb"""<(?:meta|\?xml)\s[^>]*?(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
_BLOCKS = {"article", "aside", "figure", "footer", "header", "main", "nav", "section"}
"""Elements of HTML 5 that stand alone, beside those that lxml knows."""
_WHITE = re.compile(r"[ \t\r\n\f]+")
_DROPPED = "DROPPED"
"""The tag of elements to drop, which no page has. All at once: `drop_tag` and `drop_tree` move the text before each."""
READ_AS = {
    "iso8859-1": "cp1252",
    "gb2312": "gb18030",
    "shift_jis": "cp932",
    "utf-16": "utf-8-sig",
    "utf-8": "utf-8-sig",
}
"""How browsers read what pages declare, by Python's names (encoding.spec.whatwg.org)."""


def find_encoding(page: bytes, otherwise: str = "cp1252") -> str:
    """Return the encoding that a page declares; of one that declares none, UTF-8 or another, by default browsers'."""
    if wide := find_wide_encoding(page[:4096]):
        return wide
    declared = _DECLARED.search(page, 0, 4096)
    if declared is None:
        return "utf-8-sig" if is_utf8(page) else otherwise
    try:
        name = normal_encoding(declared[1].decode())
    except ValueError:  # no encoding that is known
        name = "utf-8"
    return READ_AS.get(name, name)


def _prepare(tree: Any) -> None:
    """Change a page so that trafilatura, which is made for news, finds all text of a manual or a book.

    It drops headings outside an article or alone in an element, what is no paragraph, and parts whose names begin as
    those of menus do, such as `id="sharing-files"`; and it keeps the line ends and indentation of the source.
    """
    from lxml.etree import strip_elements, strip_tags
    from lxml.html import defs

    blocks = defs.block_tags - {"del", "ins"} | _BLOCKS
    for link in tree.find_class("headerlink"):  # the "¶" of Sphinx
        link.tag = _DROPPED
    strip_elements(tree, _DROPPED, with_tail=False)
    # The headings of parts in DocBook, where a `sidebar` is text, too.
    for title in tree.xpath("body//*[@class='titlepage']"):
        title.getparent().attrib.pop("class", None)
    for heading in list(tree.iter(*_HEADINGS)):
        while (above := heading.getparent()).tag in ("div", "header") and _is_alone(heading):
            above.tag = _DROPPED
            heading = above
        before = (f"{one.text_content()}{one.tail or ''}" for one in heading.itersiblings(preceding=True))
        if not any(map(str.strip, itertools.chain([above.text or ""], before))):  # there may be anchors
            above.attrib.pop("id", None)
    for inner in tree.xpath("//code//code | //code//em | //code//i | //code//var"):  # what stands after these was lost
        inner.tag = _DROPPED
    strip_tags(tree, _DROPPED)
    for part in list(tree.iter("div")):
        # What is between its blocks is a paragraph.
        paragraphs = [tree.makeelement("p")]
        paragraphs[0].text, part.text = part.text, None
        part.insert(0, paragraphs[0])
        for child in list(part)[1:]:
            if child.tag in blocks or any(below.tag in blocks for below in child.iterdescendants()):
                paragraphs.append(tree.makeelement("p"))
                paragraphs[-1].text, child.tail = child.tail, None
                child.addnext(paragraphs[-1])
            else:
                paragraphs[-1].append(child)
        for paragraph in paragraphs:
            if not paragraph.text_content().strip():
                paragraph.tag = _DROPPED
    for part in tree.xpath("body//div[not(@*)]"):  # short ones with a heading were lost
        part.tag = _DROPPED
    strip_tags(tree, _DROPPED)
    for part in tree.xpath("//*[not(ancestor::pre | ancestor::textarea)]"):
        if part.tail:
            part.tail = _WHITE.sub(" ", part.tail)
        if part.text and part.tag not in ("pre", "textarea"):
            part.text = _WHITE.sub(" ", part.text.lstrip() if part.tag == "p" else part.text)
    body = tree.find("body")
    if body is not None and not tree.xpath("//article | //main | //*[@role='main']"):
        body.tag = "article"
        outer = tree.makeelement("body")
        body.addprevious(outer)
        outer.append(body)


def _is_alone(heading: Any) -> bool:
    """Return whether nothing else is in the element that a heading is in."""
    above = heading.getparent()
    return len(above) == 1 and not f"{above.text or ''}{heading.tail or ''}".strip()


def extract_text(page: bytes, encoding: str) -> str:
    """Return the title and the main content of a page; nothing if it has none, or is nested too deeply to be parsed.

    Raises:
        ValueError: the page does not decode, or is too large.
    """
    if len(page) > MOST_PAGE_BYTES:
        raise ValueError(f"it has {len(page):,} bytes; at most {MOST_PAGE_BYTES:,} are parsed")
    from lxml import html
    from lxml.etree import ParserError
    from trafilatura import extract, metadata, utils

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # a page without text is counted elsewhere
    # Without `huge_tree`, what is deeper than 256 elements would be lost without a word.
    parser = html.HTMLParser(encoding="utf-8", huge_tree=True, collect_ids=False, remove_comments=True, remove_pis=True)
    try:
        tree = html.document_fromstring(utils.repair_faulty_html(page.decode(encoding), "doctype").encode(), parser)
    except ParserError:  # there is nothing but comments
        return ""
    if parser.error_log.filter_from_fatals():
        return ""
    if tree.xpath("count(//*)") <= _MOST_ELEMENTS:
        _prepare(tree)
    title = utils.normalize_unicode(metadata.extract_title(tree) or "")
    # Without `favor_recall`, pages whose paragraphs are of other elements than `p` lose parts of sentences.
    text = extract(tree, include_comments=False, favor_recall=True, fast=len(page) > _COMPARED_BYTES) or ""
    text = re.sub(r"(?:\n|(?<![^\S\n]))[^\S\n]++(?=\n|\Z)", "", text)  # a run of spaces is tried once
    return text if not text or text.startswith(title) else f"{title}\n{text}"

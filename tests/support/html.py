"""Read an HTML page strictly: elements must be nested and closed as they were opened."""

from collections import Counter
from html.parser import HTMLParser

VOID = frozenset(("meta", "link", "br", "img", "hr", "input", "wbr"))


class Html(HTMLParser):
    """The elements, attributes, text and table rows of a page."""

    def __init__(self, page: str):
        """Parse a page; fail where an element is not closed, or closed in another order."""
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        """The text of the cells of each table row."""
        self.blocks: list[str] = []
        """The text of each `pre`."""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, self._open

    @property
    def links(self) -> list[str]:
        """The addresses that it links to."""
        return [value or "" for tag, name, value in self.attributes if (tag, name) == ("a", "href")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "pre":
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"{tag} closed at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if "pre" in self._open:
            self.blocks[-1] += data
        elif {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

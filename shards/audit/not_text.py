"""What is not text among documents: HTML, words hyphenated at line ends, headers of pages, chat records.

Nothing is changed or dropped. The rules are strict: of prose, mathematics and source code they name at most one
document in a thousand. About 0.3 ms a document, of which only the beginning counts.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable

MOST_CHARACTERS = 1 << 15
"""Characters at the beginning of a document that are looked at."""
LEAST_SHARE = 0.005
"""What is not text is told if more of the documents than this share are of a kind, and two at least."""

_TAGS = (
    "a|article|b|body|br|button|center|dd|div|dl|dt|em|figure|font|footer|form|h[1-6]|head|header|hr|html|i|iframe|img|"
    "input|label|li|link|main|meta|nav|ol|option|p|script|section|select|span|strong|style|table|tbody|td|th|title|tr|"
    "ul"
)
_TAG = re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]{{0,999}})?/?>", re.IGNORECASE)
_PAGE = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.{0,999}?-->\s*)*(?:<!doctype html|<html)", re.IGNORECASE | re.DOTALL
)
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|nbsp|apos|[lr]s?[dq]uo|[mn]dash|hellip|#\d{2,5});")
_CODE = re.compile(
    r"(?m)^\s*(?:def \w+\(|class \w+[(:{]|import [\w.]+;?$|from [\w.]+ import|#include|"
    r"(?:const|func|fn|public) \w.*[({=])"
)
_HYPHEN = re.compile(r"[^\W\d_]-[ \t]*\r?\n[ \t]*[a-z]")
_ROLE = re.compile(r'"(?:role|from)"\s*:\s*"(?:user|assistant|system|human|gpt)"')
_TURN = re.compile(r"<\|(?:im_start|start_header_id|user|assistant|system)\|>|(?:<s>\s*)?\[INST\]")
_NUMBERED = re.compile(r"(\D*)(\d{1,4})(\D.*|)")


def _is_html(text: str) -> bool:
    if _PAGE.match(text):
        return True
    # Source code that holds HTML begins otherwise.
    tags = _TAG.findall(text)
    if _CODE.search(text) and not _TAG.match(text.lstrip()):
        return False
    entities = len(_ENTITY.findall(text))
    return (len(tags) >= 6 and 12 * sum(map(len, tags)) > len(text)) or (entities >= 4 and 400 * entities > len(text))


def _is_hyphenated(text: str) -> bool:
    found = len(_HYPHEN.findall(text))
    return found >= 4 and 25 * found > text.count("\n")


def _has_page_headers(text: str) -> bool:
    pages: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for place, line in enumerate(text.splitlines()):
        if len(line) < 100 and (found := _NUMBERED.fullmatch(line)):
            pages[found[1] + found[3]].append((place, int(found[2])))
    # The number grows by one from page to page, and pages are about as long as each other.
    for own in pages.values():
        gaps = [after - before for (before, n), (after, m) in itertools.pairwise(own) if m == n + 1]
        if len(gaps) == len(own) - 1 >= 3 and min(gaps) >= 25 and 4 * max(gaps) <= 5 * min(gaps):
            return not _CODE.search(text)
    return False


def _is_chat(text: str) -> bool:
    text = text.lstrip()
    turn = _ROLE if text.startswith(("{", "[{")) or re.match(r"\[\s*\{", text) else _TURN if _TURN.match(text) else None
    return turn is not None and len(turn.findall(text)) >= 2


_EXTRACTOR = "as extractors of PDF such as `pymupdf4llm` do"
KINDS: dict[str, tuple[Callable[[str], bool], str]] = {
    "HTML": (_is_html, "Take the text out of the pages, as `trafilatura` does"),
    "words hyphenated at line ends": (_is_hyphenated, f"Join the lines, {_EXTRACTOR}"),
    "headers of pages": (_has_page_headers, f"Leave them out, {_EXTRACTOR}"),
    "chat records": (_is_chat, "Write each conversation as one text, in the form that the model will see"),
}
"""Each kind of what is not text: how a document is told, and the remedy."""


def find_not_text(texts: Iterable[str]) -> dict[str, list[int]]:
    """Find what is not text among the texts of documents.

    Returns:
        By kind the places of the texts that are of it; only kinds that are to be told.
    """
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    number = 0
    for number, text in enumerate(texts, 1):
        for kind, (is_kind, _) in KINDS.items():
            if is_kind(text[:MOST_CHARACTERS]):
                found[kind].append(number - 1)
    return {kind: own for kind, own in found.items() if len(own) >= min(2, number) and len(own) > LEAST_SHARE * number}


def describe_not_text(kind: str, count: int, of: int, where: str) -> str:
    """Say how many of the sampled documents are no text but of a kind, where one is, and the remedy."""
    return f"{kind} in {count:,} of {of:,} documents looked at, such as {where}. {KINDS[kind][1]}, before Tokenmill."

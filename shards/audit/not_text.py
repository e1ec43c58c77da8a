"""What is not text among documents: HTML and other markup, mojibake, logs, subtitles, mail, chats, encoded data.

Nothing is changed or dropped. The rules are strict: of prose, mathematics and source code they name at most one
document in a thousand. About 0.2 ms a document, of which only the beginning counts.
"""

import re
from collections.abc import Callable

from shards.errors import plural

MOST_CHARACTERS = 1 << 15
"""Characters at the beginning of a document that are looked at."""
SHARE_TOLD = 0.005
"""What is not text is told if more of the documents than this share are of a kind, and two at least."""

_TAGS = (
    "a|article|b|body|br|button|center|dd|div|dl|dt|em|figure|font|footer|form|h[1-6]|head|header|hr|html|i|iframe|img|"
    "input|label|li|link|main|meta|nav|ol|option|p|script|section|select|span|strong|style|table|tbody|td|th|title|tr|"
    "ul"
)
_TAG = re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]{{0,999}})?/?>", re.IGNORECASE)
_PAGE = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--(?:(?!-->).){0,999}-->\s*)*(?:<!doctype html|<html)", re.IGNORECASE | re.DOTALL
)
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|nbsp|apos|[lr]s?[dq]uo|[mn]dash|hellip|#\d{2,5});")
_CODE = re.compile(
    r"(?m)^[^\S\n]*(?:def \w+\(|class \w+[(:{]|import [\w.]+;?$|from [\w.]+ import|#include|"
    r"(?:const|func|fn|public) \w.*[({=])"
)
_TURN = re.compile(
    r'"(?:role|from)"\s*:\s*"(?:user|assistant|system|human|gpt)"|'
    r"<\|(?:im_start|start_header_id|user|assistant|system)\|>|\[INST\]"
)
_CHAT = re.compile(r"(?:(?:<s>|<\|begin_of_text\|>)\s*)?(?:<\||\[INST)|\[?\s*\{")
_MAIL = re.compile(r"(?i)(?:From .*\n)?(?:[A-Z][\w-]*:.*\n(?:[ \t].*\n)*)*?(?:Message-ID|MIME-Version|Received):")
_ASKS = re.compile(r"\n(?:<bos>)?(?:### Instruction:|<start_of_turn>user|(?:Human|User|USER):\s)")
_ANSWERS = re.compile(r"### Response:|<start_of_turn>model|\b(?:Assistant|ASSISTANT|AI|Bot):\s")
_BASE64 = re.compile(r"[\w+/]{300}")


def _is_html(text: str) -> bool:
    if _PAGE.match(text):
        return True
    tags, entities = ("".join(_TAG.findall(text)), len(_ENTITY.findall(text)))
    if (tags.count("<") >= 6 and 12 * len(tags) > len(text)) or (entities >= 4 and 400 * entities > len(text)):
        # Source code that holds HTML begins otherwise.
        return not _CODE.search(text) or _TAG.match(text.lstrip()) is not None
    return False


def _recurs(pattern: str, of_lines: float = 0) -> Callable[[str], bool]:
    """Return a test: a pattern occurs four times in a text, and in more than this share of its lines."""
    found = re.compile(pattern)

    def test(text: str) -> bool:
        count = len(found.findall(f"\n{text}"))
        return count >= 4 and count > of_lines * text.count("\n")

    return test


_is_talk = _recurs(
    r"\n\[?(?:\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4},? )?\d{1,2}:\d\d(?::\d\d)?(?:\s?[APap][Mm])?\]?(?: -)? "
    r"(?:<[^<>\n]{1,40}> |[^:\n]{1,40}: )",
    0.3,
)
"""As WhatsApp, Telegram and IRC write it: a time, a name, what is said."""


def _is_chat(text: str) -> bool:
    if _is_talk(text):
        return True
    if _ASKS.search(f"\n{text}"):
        return _ANSWERS.search(text) is not None
    return _CHAT.match(text.lstrip()) is not None and len(_TURN.findall(text)) >= 2


MAIL, CHATS = "headers of mail", "chat records"
_is_mojibake = _recurs(r"[ÂÃÐÑ][\x80-\xbf‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ€]|â€[\x9c\x9dœ™¦“”˜]")
_is_escaped = _recurs(r"\\r?\\?n(?![a-z])", 1)
_is_encoded = _recurs(r"\n(?:[A-Za-z0-9+/]{60,76}={0,2}|M[ -`]{60})\r?(?=\n)", 0.5)
_has_links = _recurs(r"\[\[(?!(?<=\n\[\[)[\w-]+\]\](?:\n|[A-Z]))(?:[A-Z]|\w+:)[^\[\]\n]{1,200}\]\]")
"""To pages of a wiki; not the anchors of AsciiDoc, which begin a line."""
KINDS: dict[str, tuple[Callable[[str], bool], str]] = {
    "HTML": (_is_html, 'Extract the text of the pages, as `format = "html"` does for files'),
    "words hyphenated at line ends": (
        _recurs(r"-(?<=[^\W\d_]-)[ \t]*\r?\n[ \t]*[a-z]", 0.04),
        "Join the lines, as extractors of PDF such as `pymupdf4llm` do",
    ),
    MAIL: (
        lambda text: _MAIL.match(text) is not None,
        "Take the text out of each message, as Python's `email` package does",
    ),
    CHATS: (
        _is_chat,
        "Write each conversation as a list of records of `role` and `content`, and name that column by `messages`",
    ),
    "mojibake": (
        lambda text: any(map(text.__contains__, "ÂÃÐÑâ")) and _is_mojibake(text),
        "Decode the files in the encoding that they have, or repair the text, as `ftfy` does",
    ),
    "literal \"\\n\" or b'...'": (
        lambda text: text.startswith(("b'", 'b"')) or _is_escaped(text),
        "Decode what a program has written so, as Python's `ast.literal_eval` does",
    ),
    "RTF": (lambda text: text.startswith("{\\rtf"), "Convert the files, as `pandoc -f rtf -t plain` does"),
    "wikitext": (
        # Links alone are those of notes in Markdown.
        lambda text: _has_links(text) and any(map(text.__contains__, ("'''", "{{", "\n=="))),
        "Convert the pages, as `pandoc -f mediawiki -t plain` does",
    ),
    "troff": (
        _recurs(r"\n(?:[.']\\\"|\.(?:[A-Z][A-Za-z]?|br|sp)(?: |\n))", 0.1),
        "Convert the files, as `pandoc -f man -t plain` does",
    ),
    "subtitles": (
        _recurs(r"\n(?:\d+:)?\d\d:\d\d[,.]\d{3} --> ", 0.1),
        "Join the lines without their numbers and times",
    ),
    "base64 or uuencode": (
        lambda text: _BASE64.match(text) is not None or _is_encoded(text),
        "Decode what is text, and leave out the rest",
    ),
    "logs": (
        _recurs(
            r"\n(?:[a-z][a-z-]*+ )?[\[<]?(?:\d{4}[-/]\d\d[-/]\d\d[T ,]\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|"
            r"\d+\.\d+\.\d+\.\d+ \S+ \S+ \[| *\d+\.\d{6}\] )",
            0.5,
        ),
        "Leave them out, unless the model is to write such lines",
    ),
}
"""Each kind of what is not text: how a document is told, and the remedy."""

NotText = dict[str, tuple[int, str]]
"""By kind of what is not text, the number of documents and where one is; under "", of all that were looked at."""


def add_not_text(found: NotText, more: NotText) -> None:
    """Add counts of what is not text in other documents."""
    for kind, (count, where) in more.items():
        before, first = found.get(kind, (0, where))
        found[kind] = before + count, first


def look_for_not_text(found: NotText, text: str, where: str) -> None:
    """Count what is not text in the beginning of a document, and where the document is."""
    text = text[:MOST_CHARACTERS]
    add_not_text(found, dict.fromkeys(("", *(k for k, (test, _) in KINDS.items() if test(text))), (1, where)))


def describe_not_text(found: NotText) -> list[str]:
    """Return a line for each kind of what is not text in more than a few documents, with the remedy."""
    looked = found.get("", (0, ""))[0]
    return [
        f"{kind} in {count:,} of {plural(looked, 'document')} looked at, such as {where}. {KINDS[kind][1]}, before "
        "you run Tokenmill"
        for kind, (count, where) in found.items()
        if kind and count >= max(min(2, looked), SHARE_TOLD * looked)
    ]

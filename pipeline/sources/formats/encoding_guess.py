"""Why bytes are not the text that they should be: where they do not decode, and which encoding they probably have.

The guess is for a person to judge: it comes with the text that it would give. It knows the common encodings of European
languages, Russian, Greek, Chinese, Japanese and Korean, by their frequent letters, and costs about 5 ms. The library
charset-normalizer 3.5.2 was tried: it takes French in Latin-1 and English in Windows-1252 for Windows-1250.
"""

from __future__ import annotations

import codecs
import contextlib

from pipeline.sources.formats.encodings import MARKED, UTF8
from shards.terminal.display import printable

_HEAD_BYTES = 1 << 14
_BEFORE, _AFTER = 24, 40
"""Bytes that are shown before and after the fault."""

_RUSSIAN = "абвгдежзийклмнопрстуфхцчшщъыьэюяё«»—"
_COMMON = {
    "latin-1": "éèàçùêâîôûëïüöäßñáíóúãõåøæìòÉÀÖÄÜÅØ«»°§©®·£¿¡½\u00a0\u00ad",
    "windows-1252": "éèàçùêâîôûëïüöäßñáíóúãõåøæìòÉÀÖÄÜÅØ«»°§©®·£¿¡½\u00a0\u00adœ’‘“”„–—…•™€",
    "windows-1250": "ąćęłńóśźżěščřžýáíéúůťďňőűöüäăâîşţ’‘“”„–—…\u00a0",
    "windows-1251": _RUSSIAN,
    "koi8-r": _RUSSIAN,
    "iso8859-5": _RUSSIAN,
    "cp866": _RUSSIAN,
    "windows-1253": "αβγδεζηθικλμνξοπρστυφχψωςάέήίόύώ«»",
    "shift_jis": "のにをはがとでたしているれなかもこそられまきくっりんすあう、。ー",
    "euc-jp": "のにをはがとでたしているれなかもこそられまきくっりんすあう、。ー",
    "gb18030": "的一是不了在人有我他这中大来上国个到说们为子和你地出也时年得就那要下以生会自着去之过家学对可里后小么"
    "多天而能好都然没日于起还发成事只作当文无用主行方，。、",
    "big5": "的一是不了在人有我他這中大來上國個到說們為子和你地出也時年得就那要下以生會自著去之過家學對可裡後小麼"
    "多天而能好都然沒日於起還發成事只作當文無用主行方，。、",
    "euc-kr": "이다는의에을가고하한지로사은도를기어나리서대아자스인시그해수정일전부",
}
"""The letters by which an encoding is known: the frequent ones of the languages that use it."""
_LATIN = ("latin-1", "windows-1252", "windows-1250")
_WIDE = ("shift_jis", "euc-jp", "gb18030", "big5", "euc-kr")
_LEAST_COMMON = 0.25
"""The least share of these letters among the characters outside ASCII: frequent ones are a third of Chinese text."""
_LEAST_PRINTABLE = 0.9
_MOST_NEIGHBOURS = 0.5
"""Most of the letters of other scripts have a neighbour that is outside ASCII, too; few accented Latin letters do."""


def explain_fault(text: bytes, encoding: str) -> tuple[str, str]:
    """Say where a text does not decode.

    Args:
        text: a document that is not UTF-8; bytes that do not decode in another encoding are marked.
        encoding: the stated one.

    Returns:
        One line for a person; and the encoding that the document probably has, empty if nothing speaks for one.
    """
    # In another encoding than UTF-8, bytes that do not decode were marked when the file was read.
    if encoding != UTF8:
        return _explain_mark(text, encoding), ""
    try:
        text.decode()
        return "", ""
    except UnicodeDecodeError as error:
        place, cut = error.start, error.reason == "unexpected end of data"
    # The fault with some text around it.
    first = max(0, place - _BEFORE)
    part = text[first : place + _AFTER]
    if cut and not text[:place].isascii():
        return f"ends within a character of UTF-8, at byte {place:,}: {_show(part)}", ""
    start = 0 if place < _HEAD_BYTES else place - _HEAD_BYTES // 2
    guess = guess_encoding(text[start : start + _HEAD_BYTES])
    found = f"byte 0x{text[place]:02x} at {place:,} is not UTF-8"
    if not guess:
        return f"{found}: {_show(part)}", ""
    if guess.startswith("utf-"):  # their characters begin at even places
        part = text[: _BEFORE + _AFTER]
    return f"{found}: {_show(part, 'ascii')}, which {guess} reads as {_show(part, guess)}", guess


def _explain_mark(text: bytes, encoding: str) -> str:
    found = MARKED.search(text)
    if found is None:
        return f"does not decode in {encoding}"
    part = text[max(0, found.start() - _BEFORE) : found.start() + _AFTER]
    shown = MARKED.sub(lambda mark: bytes.fromhex(mark[1].decode()), part)
    return f"byte 0x{found[1].decode()} does not decode in {encoding}: {_show(shown)}"


def _show(part: bytes, encoding: str = UTF8) -> str:
    return f'"{printable(part.decode(encoding, "backslashreplace"))}"'


def guess_encoding(data: bytes) -> str:
    """Return the encoding of bytes that are not, or seem not to be, UTF-8; empty if nothing speaks for one."""
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # UTF-16 without a mark: every other byte of ASCII is zero.
    nulls = (data[::2].count(0), data[1::2].count(0))
    if 5 * max(nulls) > len(data) and 5 * min(nulls) < max(nulls):  # a fifth: much of the text is ASCII
        wide = "utf-16-le" if nulls[1] > nulls[0] else "utf-16-be"
        text = data.decode(wide, "replace")
        if sum(character.isprintable() or character.isspace() for character in text) > _LEAST_PRINTABLE * len(text):
            return wide
    broken = data.decode(UTF8, "surrogateescape")
    with contextlib.suppress(UnicodeDecodeError):
        data.decode(UTF8, "surrogatepass")
        return ""  # UTF-8 but for halves of characters of UTF-16
    bad = sum("\udc80" <= character <= "\udcff" for character in broken)
    if sum(not character.isascii() for character in broken) >= 2 * bad > 0:
        return ""  # UTF-8 with some damage: other encodings seldom give its sequences
    scores = {encoding: _score(data, encoding) for encoding in _COMMON}
    best = max(scores, key=lambda encoding: scores[encoding])  # the first of equal ones
    return best if scores[best] >= _LEAST_COMMON else ""


def _score(data: bytes, encoding: str) -> float:
    """Return the share of an encoding's frequent letters among the characters outside ASCII; 0 if it is ruled out."""
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(data)  # a character may be cut at the end
    except UnicodeDecodeError:
        return 0.0
    others = [place for place, character in enumerate(text) if not character.isascii()]
    if not others:
        return 0.0
    neighbours = sum(not (text[place - 1 : place] + text[place + 1 : place + 2]).isascii() for place in others)
    if encoding not in _WIDE and (neighbours > _MOST_NEIGHBOURS * len(others)) == (encoding in _LATIN):
        return 0.0
    return sum(text[place] in _COMMON[encoding] for place in others) / len(others)

"""Near-duplicates that tests plant, and slow, obvious functions that say how similar documents are."""

import random
import re
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Planted:
    """Documents, and the pairs that were made of them: indices of the original and of its changed copy."""

    documents: list[str]
    near: list[tuple[int, int]]
    apart: list[tuple[int, int]]


ALONE = (
    "\u3001-\u3020\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uffdc\U00020000-\U0003347f"
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
)
"""Signs of Chinese and Japanese; Thai, Lao, Burmese and Khmer: the inside of a class of characters."""
_WORD = re.compile(f"[{ALONE}]|[^{ALONE}]+")


def fold(text: str) -> str:
    """Return a text without what its case and its composed letters say."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def words(text: str) -> list[str]:
    """Return the words of a text's normal form: in scripts without spaces, each character."""
    return [word for run in fold(text).replace("\u200b", " ").split() for word in _WORD.findall(run)]


@cache
def shingles(text: str) -> list[tuple[str, ...]]:
    """Return five consecutive words from each word on; all together if there are fewer."""
    own = words(text)
    return [tuple(own[place : place + 5]) for place in range(max(1, len(own) - 4))]


def jaccard(first: str, second: str) -> float:
    """Return the Jaccard similarity of two documents' sets of shingles."""
    a, b = set(shingles(first)), set(shingles(second))
    return len(a & b) / len(a | b)


def count_characters(text: str) -> int:
    """Return how long a document is where the longest of similar ones stays."""
    return sum(map(len, words(text)))


def _wrap(text: str) -> str:
    """Break lines at other places: at spaces, or where there are none before any letter."""
    if text.count(" ") < len(text) / 20:
        letters = re.findall(r"\S(?:(?!\w)\S|[\u0e30-\u0e4e\u3099])*", text)
        return "\n".join("".join(letters[at : at + 17]) for at in range(0, len(letters), 17))
    return textwrap.fill(" ".join(text.split()), 57)


DRESSES: dict[str, Callable[[str], str]] = {
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "wrapping": _wrap,
    "indentation": lambda text: "".join(f"\t  {line}" for line in text.splitlines(keepends=True)),
    "two spaces": lambda text: text.replace(" ", "  "),
    "wide spaces": lambda text: text.replace(" ", "\u2003").replace("\n", "\u2028"),
    "capitals": str.upper,
    "no width": lambda text: re.sub("(?<=[ก-๛])(?=[ก-๛])", "\u200b", text),
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "trailing spaces": lambda text: text.replace("\n", " \t\n") + "   \n\n",
}
"""The same text, in another dress."""


def write_scripts(count: int, seed: int) -> list[str]:
    """Return texts of several scripts, each about 80 words in lines, of which no two are similar."""
    draw = random.Random(seed)
    letters = ["aeiounst", "àéîõüñçř", "абвгдеёжий", "αβγδέώσ", "가각한글밥", "कखगनि"]
    letters += ["中文字母一二三四五六", "がぎぷそれなに", "กขคงน่ม้"]

    def word(script: str) -> str:
        return "".join(draw.choices(script, k=draw.randrange(2, 8))).capitalize()

    def line(script: str) -> str:
        return (" " if script < "\u0e00" or "\uac00" <= script < "\ud800" else "").join(word(script) for _ in range(9))

    return ["".join(line(letters[number % len(letters)]) + "\n" for _ in range(9)) for number in range(count)]


def change(text: str, similarity: float, generator: random.Random) -> str:
    """Replace words, far apart, so that the Jaccard similarity is about the given one."""
    words = text.split(" ")
    changes = max(1, round(len(words) * (1 - similarity) / (1 + similarity) / 5))
    step = len(words) / changes
    for number in range(changes):
        place = min(len(words) - 1, int((number + generator.random() * 0.3 + 0.3) * step))
        words[place] = generator.choice(("Zephyr", "quartz", "jumbled", "vexing")) + str(generator.randrange(10**6))
    return " ".join(words)


def plant(texts: Sequence[str], *, near: int, apart: int, seed: int = 5) -> Planted:
    """Add changed copies of the first texts: `near` at similarities of 0.75 to 0.99, `apart` at about 0.4 to 0.6."""
    generator = random.Random(seed)
    documents = list(texts)
    pairs: list[tuple[int, int]] = []
    for number in range(near + apart):
        similarity = generator.uniform(0.75, 0.99) if number < near else generator.uniform(0.38, 0.52)
        documents.append(change(texts[number], similarity, generator))
        pairs.append((number, len(documents) - 1))
    return Planted(documents, pairs[:near], pairs[near:])

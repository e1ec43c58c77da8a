"""Documents of the kinds that spoilt a model: words that nothing else holds, in text that is otherwise ordinary."""

from __future__ import annotations

import random

TRIPLES, LOGS, TABLES, LISTS = "PersonX", "AndroidRuntime", "fefefe", "oardvark"
"""One word of each kind of planted document."""

_RARE = ["oardvark", "usavik", "quillet", "zarfin", "brontel", "maskop", "vintrum", "delpho", "garnix", "hulbert"]


def plant(texts: list[str], *, number: int = 60, seed: int = 3) -> list[str]:
    """Return documents that begin as ordinary text and go on as triples, logs, hex tables or word lists.

    Args:
        texts: ordinary text; each document begins with up to 300 characters of one.
        number: how many documents; a quarter of them is of each kind.
        seed: of the random choices.
    """
    rng = random.Random(seed)
    kinds = (_triple, _log, _table, _words)
    documents: list[str] = []
    for index in range(number):
        lines = [kinds[index % len(kinds)](rng) for _ in range(rng.randint(20, 40))]
        documents.append("\n".join([rng.choice(texts)[: rng.randint(100, 300)], f"no. {index}", *lines]))
    return documents


def _triple(rng: random.Random) -> str:
    one, other = rng.choice(["XY", "YX"])
    return f"Person{one} {rng.choice(['gives', 'asks', 'visits', 'pays'])} Person{other} a gift @.@ the end"


def _log(rng: random.Random) -> str:
    number = rng.randrange(9999)
    return f"E/AndroidRuntime({number}): at com.example.Class{number % 97}.run(line {number % 89})"


def _table(rng: random.Random) -> str:
    return " ".join(rng.choice(["fefefe", "0a0b0c", "dcdcdc", f"{rng.randrange(256):02x}"]) for _ in range(8))


def _words(rng: random.Random) -> str:
    return ", ".join(rng.choice(_RARE) for _ in range(6))

"""Near-duplicates that tests plant, and slow, obvious functions that say how similar documents are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """Documents, and the pairs that were made of them: indices of the original and of its changed copy."""

    documents: list[str]
    near: list[tuple[int, int]]
    apart: list[tuple[int, int]]


def shingles(tokens: Sequence[int]) -> set[tuple[int, ...]]:
    """Return the set of 5-grams of tokens, EOS not among them; all tokens together if there are fewer."""
    return {tuple(tokens[place : place + 5]) for place in range(max(1, len(tokens) - 4))}


def jaccard(first: Sequence[int], second: Sequence[int]) -> float:
    """Return the Jaccard similarity of two documents' sets of 5-grams."""
    a, b = shingles(first), shingles(second)
    return len(a & b) / len(a | b)


def change(text: str, similarity: float, generator: random.Random) -> str:
    """Replace words, far apart, so that the Jaccard similarity is about the given one."""
    words = text.split(" ")
    changes = max(1, round(len(words) * (1 - similarity) / (1 + similarity) / 4))
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

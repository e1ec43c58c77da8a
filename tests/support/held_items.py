"""Evaluation items in documents: those that hold them, as a build finds them."""

import numpy as np
import pyarrow as pa

from pipeline.clean.decontamination.held_items import HeldItems
from pipeline.clean.decontamination.hits import HitFinder
from pipeline.clean.decontamination.items import ITEM_DTYPE, Items, collect_items, find_item_ngrams
from pipeline.clean.tally import Documents


def items_of(texts: list[str]) -> Items:
    """Return texts as the items of an evaluation set."""
    found = [find_item_ngrams(memoryview(text.encode())) for text in texts]
    rows = np.zeros(len(texts), ITEM_DTYPE)
    rows["words"], rows["size"] = zip(*((words, size) for words, size, _ in found), strict=True)
    return collect_items(rows, [ngrams for _, _, ngrams in found])


def documents_of(texts: list[str]) -> Documents:
    """Return texts as the documents of a batch."""
    return Documents(pa.array(texts, pa.large_string()), np.arange(len(texts), dtype=np.uint32))


def find_held(items: list[str], documents: list[str], counts: int | None = None) -> set[tuple[int, int]]:
    """Return (document, item) of a corpus; with `counts`, as if each n-gram occurred in so many documents."""
    own = items_of(items)
    hits = HitFinder(own).find(documents_of(documents))
    pairs = np.unique(hits[["document", "ngram"]])
    number = len(own.ngrams)
    occur = np.bincount(pairs["ngram"], minlength=number) if counts is None else np.full(number, counts)
    held = HeldItems(own, occur, len(documents)).find(hits)
    return set(zip(held["document"].tolist(), held["item"].tolist(), strict=True))

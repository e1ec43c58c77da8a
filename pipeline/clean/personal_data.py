"""Personal data in Arrow columns of documents: it is found, counted by kind, and masked, or its document dropped.

One pass of RE2 over all text finds the documents that may have some, at 400 to 800 MB of text per second and core; only
these, 7% of web pages and 20% of source files, are searched. What takes the place of a hit is chosen by the hit and
by the content hash of the document's original text: never by a counter, so that no order of work changes the output.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from pipeline.arrow_arrays import unwrap_mask, wrap_numbers
from pipeline.clean import personal_kinds
from pipeline.clean.personal_kinds import GROUPS, Kind
from pipeline.clean.tally import MARK, Documents, Tally
from pipeline.recipe.clean_recipe import PersonalData, PersonalKind
from shards.format.content_hash import hash_document


def versions() -> list[int]:
    """Return the versions that decide which personal data are found."""
    return [personal_kinds.CODE_VERSION]


def apply(table: PersonalData, documents: Documents, tally: Tally) -> Documents:
    """Mask personal data, or drop the documents that hold some, as the recipe says."""
    if table.action == "mask":
        return mask_personal_data(documents, table.all_kinds, tally)
    found = find_personal_data(documents.seen.text, table.all_kinds)
    reasons = {index: f"{table.step}: {kind}" for index, kind in found.items()}
    return tally.drop(table.step, documents, reasons, show_text=False)


def mask_personal_data(documents: Documents, kinds: tuple[PersonalKind, ...], tally: Tally) -> Documents:
    """Return documents with placeholders for personal data.

    Args:
        documents: the documents.
        kinds: what to look for.
        tally: the counts are added to it.
    """
    changed: dict[int, bytes] = {}
    for index, _, found in _candidates(documents.seen.text, kinds):
        original = documents.text[index].as_buffer().to_pybytes()
        after = mask_text(original, found, tally, has_marks=documents.has_marks)
        if after != original:
            changed[index] = after
    return documents.with_texts(changed)


def mask_text(original: bytes, kinds: Sequence[Kind], tally: Tally, *, has_marks: bool = False) -> bytes:
    """Return one document's text with placeholders for its personal data; they are counted in the tally.

    Each message is searched alone, if marks are before messages.
    """
    seed = int.from_bytes(hash_document(original)[:8], "big")
    parts = MARK.split(original) if has_marks else [original]
    for number, kind in itertools.product(range(len(parts)), kinds):
        after = parts[number]
        pieces: list[bytes] = []
        done = 0
        for start, stop in kind.find(after):
            # The same hit in the same document has the same placeholder, whatever else was read.
            chosen = xxhash.xxh3_64_intdigest(after[start:stop], seed) % len(kind.placeholders)
            pieces += [after[done:start], kind.placeholders[chosen]]
            done = stop
            tally.masked[kind.name] += 1
        if pieces:
            parts[number] = b"".join([*pieces, after[done:]])
    return b"".join(parts)


def find_personal_data(text: pa.LargeStringArray, kinds: tuple[PersonalKind, ...]) -> dict[int, str]:
    """Return the documents that hold personal data, in order, each with its kind.

    Args:
        text: the documents, `(documents,)`, without nulls.
        kinds: what to look for; of several in a document, the first in the order of `GROUPS` is returned.
    """
    found: dict[int, str] = {}
    for index, document, candidates in _candidates(text, kinds):
        name = next((kind.name for kind in candidates if next(kind.find(document), None)), None)
        if name is not None:
            found[index] = name
    return found


def _candidates(text: pa.LargeStringArray, names: tuple[PersonalKind, ...]) -> Iterator[tuple[int, bytes, list[Kind]]]:
    """Yield the documents that a hint of personal data matches, in order, each with the kinds of its groups."""
    import pyarrow.compute as pc

    groups = [own for group in GROUPS if (own := [kind for kind in group if kind.name in names])]
    # One pass with all hints; few documents match, and only those are asked for each group.
    left = np.flatnonzero(unwrap_mask(pc.match_substring_regex(text, "|".join(map(_join_hints, groups)))))
    if not len(left):
        return
    held: Any = text.take(wrap_numbers(pa.int64(), left))
    matches = np.array([unwrap_mask(pc.match_substring_regex(held, _join_hints(group))) for group in groups])
    for index, document, column in zip(left.tolist(), held, matches.T, strict=True):
        kinds = [kind for number in np.flatnonzero(column) for kind in groups[number]]
        yield index, document.as_buffer().to_pybytes(), kinds


def _join_hints(kinds: Sequence[Kind]) -> str:
    return "|".join(f"(?:{kind.hint})" for kind in kinds)

"""The tokenizer's sample: documents of the sources in given proportions, in one file.

The sample takes row groups (or files, or parts of text files) in a seeded order until each source's budget is met, so
that only a small part of a large source is read. If a source has less text than its share, all budgets shrink, so that
the proportions hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar

import numpy as np

from pipeline.clean.documents import DocumentStream
from pipeline.clean.steps import files_by_name, reading_keys
from pipeline.engine.tasks import NOT_IN_DIGEST, InDigest, Payload, Report
from pipeline.recipe.clean_recipe import CleanRecipe
from pipeline.recipe.schema import SourceRecipe, TokenizerRecipe
from pipeline.recipe.shares import Shares
from pipeline.sources.base import Span
from pipeline.sources.network import keep_fetched
from shards.format.chat import parse_conversation

DOCUMENT_SEPARATOR = b"\xff"
"""Ends each document of a sample file: no byte of UTF-8 text has this value."""

MAX_WORD_BYTES = 1 << 14
"""Documents with a longer run of letters, digits, marks or spaces are cut into parts of up to `PART_BYTES`.

Training takes time quadratic in a word's length: 0.3 s for a word of 100 KB, 13 s for one of 1 MB, measured.
"""

PART_BYTES = 1 << 12

MOST_UNBROKEN_BYTES = 1 << 23
"""How much of parts with runs of over `_UNBROKEN_BYTES` a sample takes; the rest is left out, and counted.

Hardly a word is there twice: training takes 60 times their size in memory, with `tokenizers` 110 times, measured.
"""

_UNBROKEN_BYTES = 1 << 10

PIECE_BYTES = 1 << 20
"""Longer documents are cut into pieces of up to this size, at line ends or spaces. `tokenizers` takes 130 times the
size of a document to find its words: 13.5 GB for one of 100 MB, measured."""

MUCH = 0.3
"""A build says so if a larger share of what was read for the sample is dropped."""

# Pre-tokenizers cut at least where these classes of bytes meet; bytes above 0x7F count as letters.
_BYTE_CLASS = np.full(256, 2, np.uint8)
_BYTE_CLASS[[*range(0x30, 0x3A)]] = 1
_BYTE_CLASS[[*range(0x41, 0x5B), *range(0x61, 0x7B), *range(0x80, 0x100)]] = 0
_BYTE_CLASS[[*range(0x09, 0x0E), 0x20]] = 3


def _reading_keys(sources: tuple[SourceRecipe, ...]) -> dict[str, Any]:
    # The sample is drawn source by source, with the number of each in its seed.
    keys = {source.name: reading_keys(source) for source in sources}
    return {"order": list(keys), "sources": keys}


@dataclass(frozen=True, slots=True)
class TokenizerTask(Payload):
    """The input of the tokenizer stage; plain data."""

    CODE: ClassVar = 7
    LIBRARIES: ClassVar = ("gigatoken", "tokenizers", "pyarrow")

    recipe: Annotated[TokenizerRecipe, InDigest(lambda own: own.model_dump(mode="json", exclude={"bos"}), "tokenizer")]
    sources: Annotated[tuple[SourceRecipe, ...], InDigest(_reading_keys, "")]
    spans: Annotated[dict[str, tuple[Span, ...]], InDigest(files_by_name, "sources")]
    """By the name of the source, in the order of the sources."""
    weights: Annotated[dict[str, float], NOT_IN_DIGEST]
    """Of the sources in the sample, by name, in their order. A change of the mix trains no new tokenizer."""
    seed: int
    limits: Annotated[dict[str, CleanRecipe], NOT_IN_DIGEST]
    """By source, the presets with `when = "mix"`, with the limits that the sample is drawn with."""


@dataclass(slots=True)
class Drawn:
    """What was read of a source for the sample."""

    text_bytes: int = 0
    left_out: int = 0
    """Documents that have parts left out, as the source's share of `MOST_UNBROKEN_BYTES` was taken."""
    records: int = 0
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    """By reason."""


def iter_sample(path: Path) -> Iterator[str]:
    """Yield the documents of a sample file, those over `PIECE_BYTES` in pieces."""
    pending = b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            *documents, pending = (pending + block).split(DOCUMENT_SEPARATOR)
            yield from (document.decode() for document in documents)
    if pending:
        yield pending.decode()


def draw_sample(path: Path, task: TokenizerTask, report: Report) -> dict[str, Drawn]:
    """Write the sample's documents to a file, `DOCUMENT_SEPARATOR` after each; return the counts by source."""
    with path.open("wb") as file, keep_fetched():  # the encode stage reads the same ranges again
        return {source.name: _draw(file, task, index, report) for index, source in enumerate(task.sources)}


def sample_budgets(task: TokenizerTask) -> list[int]:
    """Return the bytes of text to take from each source, in proportion to the weights and limited by the text."""
    wanted = [task.recipe.sample_bytes * share for share in Shares(tuple(task.weights.values())).fractions]
    offered = [sum(span.text_bytes for span in spans) for spans in task.spans.values()]
    # No text is asked for of a source whose share is less than a byte.
    scale = min([Fraction(1), *(have / want for have, want in zip(offered, wanted, strict=True) if want >= 1)])
    return [int(want * scale) for want in wanted]


def _draw(file: BinaryIO, task: TokenizerTask, index: int, report: Report) -> Drawn:
    # Take whole documents in the seeded order until the budget is met.
    budgets = sample_budgets(task)
    budget, unbroken = budgets[index], 0
    most = MOST_UNBROKEN_BYTES * budget // max(1, sum(budgets))
    source = task.sources[index]
    if limits := task.limits.get(source.name):
        source = source.with_values(clean=source.clean.for_sample(limits))
    drawn = Drawn()
    stream = DocumentStream(source, _shuffle(task, index) if budget else ())
    for _, batch in stream:
        stream.refuse_malformed()
        for text in batch:
            left_out = False
            for piece, is_unbroken in chain.from_iterable(map(_iter_pieces, _list_texts(source, text))):
                if is_unbroken and unbroken and unbroken + len(piece) > most:  # each source has one at least
                    left_out = True
                    continue
                unbroken += len(piece) * is_unbroken
                file.write(piece)
                file.write(DOCUMENT_SEPARATOR)
                drawn.text_bytes += len(piece)
                if drawn.text_bytes >= budget:  # whole documents or pieces, including the one that meets the budget
                    break
            drawn.left_out += left_out
            if drawn.text_bytes >= budget:
                break
        report(file.tell(), 0)
        if drawn.text_bytes >= budget:
            break
    drawn.dropped = stream.tally.dropped
    drawn.records = stream.documents + stream.tally.dropped.total()
    return drawn


def _list_texts(source: SourceRecipe, document: memoryview) -> list[memoryview]:
    """Return the text of a sampled document: of a conversation, what each message says."""
    if not source.has_conversations:
        return [document]
    return [memoryview(content.encode()) for _, content in parse_conversation(str(document, "utf-8"))]


def _iter_pieces(text: memoryview) -> Iterator[tuple[memoryview, bool]]:
    """Yield a sampled document's pieces, and whether each is part of one with endless words and has a long word."""
    for piece in _cut(text, PIECE_BYTES):
        if len(piece) > MAX_WORD_BYTES and _longest_word_bytes(piece) > MAX_WORD_BYTES:
            yield from ((part, _longest_word_bytes(part) > _UNBROKEN_BYTES) for part in _cut(piece, PART_BYTES))
        else:
            yield piece, False


def _cut(text: memoryview, most: int) -> Iterator[memoryview]:
    """Yield a text in pieces of up to `most` bytes.

    Each ends with its last line end, else before its last space, with its last mark (such as a full stop of Chinese),
    or anywhere between two characters.
    """
    start = 0
    while len(text) - start > most:
        piece = bytes(text[start : start + most])
        size = piece.rfind(b"\n") + 1 or max(0, piece.rfind(b" "))
        if not size:
            whole = piece.decode(errors="ignore")  # without the beginning of a character
            tail = whole[-PART_BYTES // 4 :]
            after = next((at for at in range(len(tail), 0, -1) if not tail[at - 1].isalnum()), len(tail))
            size = len(whole.encode()) - len(tail[after:].encode())
        yield text[start : start + size]
        start += size
    yield text[start:]


def _longest_word_bytes(data: memoryview | bytes) -> int:
    """Return an upper bound of a sampled document's longest pre-token: its longest run of bytes of one class."""
    classes = _BYTE_CLASS[np.frombuffer(data, np.uint8)]
    edges = np.flatnonzero(classes[1:] != classes[:-1])
    return int(np.diff(edges, prepend=-1, append=len(classes) - 1).max(initial=0))


def _shuffle(task: TokenizerTask, index: int) -> list[Span]:
    spans = [part for span in task.spans[task.sources[index].name] for part in split_groups(span)]
    keys = np.random.PCG64(np.random.SeedSequence([task.seed, index])).random_raw(len(spans))
    order: list[int] = np.argsort(keys, kind="stable").tolist()
    return [spans[i] for i in order]


def split_groups(span: Span) -> list[Span]:
    """Cut a span to sample into its single row groups; return any other span alone."""
    if span.kind != "rg":
        return [span]
    return [replace(span, start=index, stop=index + 1) for index in range(span.start, span.stop)]

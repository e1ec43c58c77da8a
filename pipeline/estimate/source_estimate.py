"""The estimate of one source: how much of it a build reads, and how many documents and tokens that gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.estimate.disk import GUESSED_DOCUMENT_BYTES
from pipeline.estimate.pilot import SourcePilot
from pipeline.mix.take import describe_take
from pipeline.sources.selection import ReadFile, Selection

_CONTENT_STORED_SHARE = 0.3  # gzip on source code


@dataclass(frozen=True, slots=True)
class SourceEstimate:
    """How much of one source would be read, and how many documents and tokens that gives."""

    name: str
    share: float
    files: int
    """Files that are read, whole or in part."""
    all_files: int
    units: int
    documents: int | None
    """Documents encoded; None if neither a footer nor a pilot gives the number."""
    text_bytes: int
    """Text of the documents kept."""
    stored_bytes: int
    """Bytes read from disk or network."""
    download_bytes: int
    """The part of `stored_bytes` that is read over a network, and the files from Software Heritage's archive."""
    content_files: int
    """Files fetched from that archive."""
    encoded_tokens: int
    """Tokens of the documents kept, duplicates and EOS included."""
    tokens: int
    """Tokens left for the mix, without the duplicates that were found and the documents that are not taken."""
    take: float
    """The recipe's `take`, by which `tokens` are fewer."""
    epochs: float
    """How often training takes the tokens left after validation."""
    has_more: bool
    """Whether parts of the source stay unread because the build has enough tokens without them."""
    read_files: tuple[ReadFile, ...]
    empty_files: tuple[str, ...]
    """Names of the files that hold no record."""
    ratios: SourcePilot
    """What the pilot measured; without one, ratios for English text."""

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as JSON values, the ratios beside the numbers."""
        data = asdict(self)
        return data.pop("ratios") | data


def guess_source(selection: Selection) -> SourcePilot:
    """Estimate a source without a pilot, by ratios for English text."""
    spans = [span for unit in selection.units for span in unit.spans]
    rows = [span.rows if span.rows is not None else span.text_bytes // GUESSED_DOCUMENT_BYTES + 1 for span in spans]
    per_byte = sum(rows) / max(1, selection.text_bytes)
    fetched = per_byte if selection.source.content != "column" else 0.0
    return SourcePilot(
        documents=per_byte,
        content_files=fetched,
        content_bytes=_CONTENT_STORED_SHARE if fetched else 0.0,
    )


def estimate_source(
    share: float, selection: Selection, ratios: SourcePilot, *, train_tokens: int, val_tokens: int
) -> SourceEstimate:
    """Estimate a source by ratios, measured or guessed.

    Args:
        share: the source's share of the mix.
        selection: what is read of it.
        ratios: the ratios.
        train_tokens: tokens that training asks of it.
        val_tokens: tokens that validation asks of it.
    """
    spans = [span for unit in selection.units for span in unit.spans]
    text_bytes = selection.text_bytes
    # What is read of files, and what is fetched for rows that only name their text.
    stored_bytes = sum(span.stored_bytes for span in spans)
    content_bytes = int(text_bytes * ratios.content_bytes)
    read_files = tuple(selection.read_files())
    rows = [span.rows for span in spans if span.rows is not None]
    documents = None
    if len(rows) == len(spans):  # the share of rows kept varies less than the length of documents
        documents = round(sum(rows) * (1.0 if ratios.kept is None else ratios.kept))
    elif ratios.kept is not None:
        documents = round(text_bytes * ratios.documents)
    # Documents that are not taken count like those that the other steps drop, of which they come last.
    take, tokens = selection.source.take, estimate_tokens(selection, ratios)
    if take < 1:
        distinct = 1 - ratios.distinct.duplicates - ratios.distinct.elsewhere
        came = (1.0 if ratios.kept is None else ratios.kept) * ratios.left_documents * distinct
        ratios = replace(ratios, dropped=ratios.dropped | {describe_take(take): came * (1 - take)})
    return SourceEstimate(
        name=selection.source.name,
        share=share,
        files=len(read_files),
        all_files=len(selection.files),
        units=len(selection.units),
        documents=documents,
        text_bytes=int(text_bytes * ratios.text),
        stored_bytes=stored_bytes,
        download_bytes=(stored_bytes if selection.is_remote else 0) + content_bytes,
        content_files=round(text_bytes * ratios.content_files),
        encoded_tokens=int(text_bytes * ratios.text / ratios.bytes_per_token),
        tokens=tokens,
        take=take,
        epochs=train_tokens / max(1, tokens - val_tokens),
        has_more=selection.has_more,
        read_files=read_files,
        empty_files=tuple(selection.empty),
        ratios=ratios,
    )


def estimate_tokens(selection: Selection, ratios: SourcePilot) -> int:
    """Return the tokens that a source offers to the mix."""
    # What cleaning in the mix leaves, of that what is no copy, and of that what is taken.
    left = ratios.left_tokens * ratios.distinct.text * selection.source.take
    return int(selection.text_bytes * ratios.text * left / ratios.bytes_per_token)


def estimate_documents(sources: Sequence[SourceEstimate]) -> int:
    """Return the documents of several sources, by the estimate of each."""
    return sum(source.documents or source.text_bytes // GUESSED_DOCUMENT_BYTES for source in sources)

"""Encode: turn one unit of a source into one run. Read, clean, hash, encode, sort, write.

Text stays in Arrow buffers. A sample of every unit is also encoded with `tokenizers`; a difference stops the build and
shows the document. Memory: the unit's tokens (2 or 4 bytes each) and one batch of text.
"""

import io
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import xxhash

from pipeline.clean.decontamination.hits import HIT_DTYPE, load_finder
from pipeline.clean.documents import DocumentStream
from pipeline.clean.measures.measure import measure_documents
from pipeline.clean.steps import reading_keys
from pipeline.clean.tally import Documents, Tally
from pipeline.encode.conversations import find_messages
from pipeline.encode.run import (
    DOCUMENT_DTYPE,
    DOCUMENTS_FILE,
    HITS_FILE,
    MEASURES_DTYPE,
    MEASURES_FILE,
    TOKENS_FILE,
    RunResult,
)
from pipeline.engine.checksums import ChecksummedWriter, WrittenFile, write_checksummed
from pipeline.engine.tasks import NOT_IN_DIGEST, InDigest, Payload, Report, last_part
from pipeline.recipe.chat import ChatRecipe
from pipeline.recipe.schema import SourceRecipe
from pipeline.sources.base import Unit, content_of_unit, describe_place
from pipeline.tokenizer.encoder import Encoder, load_encoder
from pipeline.tokenizer.kept_text import KeptText
from shards.errors import InputError, RunError
from shards.format.arrays import Float32s, Int64s, Rows, Tokens, UInt32s
from shards.format.chat import ChatIds, parse_conversation
from shards.format.content_hash import hash_documents

CHECK_ONE_IN = 4096
"""One document in this many, chosen by hash, is checked against the reference. The checks take 2% of a build with
units of 37 MB, measured."""
CHECK_AT_LEAST = 4
CHECK_MAX_BYTES = 1 << 20
"""Longer documents are not checked: the reference would take seconds for each."""
_BLOCK_TOKENS = 1 << 20
_WRITE_DOCUMENTS = 1024


@dataclass(frozen=True, slots=True)
class EncodeTask(Payload):
    """The input of one encode task; plain data, so that it can be sent to another process or machine."""

    CODE: ClassVar = 7
    LIBRARIES: ClassVar = ("gigatoken", "pyarrow", "xxhash")

    unit: Annotated[Unit, InDigest(content_of_unit, "sources.{task.source.name}.files")]
    source: Annotated[SourceRecipe, InDigest(reading_keys, "sources.{task.source.name}")]
    tokenizer: Annotated[str, NOT_IN_DIGEST]
    """The `tokenizer.json`."""
    tokenizer_sha256: Annotated[str, InDigest(called="{task.tokenizer_key}")]
    eos_id: Annotated[int, InDigest(called="tokenizer.eos_token")]
    dtype: str
    tokenizer_task: Annotated[str | None, NOT_IN_DIGEST] = None
    """The address of the folder of the task that trained the tokenizer; None if the recipe names the file."""
    evaluations: Annotated[str | None, InDigest(last_part, "after.evaluations")] = None
    """The address of the folder of the task that read the evaluation sets; None if the recipe names none."""
    bos_id: Annotated[int | None, InDigest(called="tokenizer.bos")] = None
    """The id that begins each document; None if none does."""
    chat: Annotated[ChatRecipe | None, NOT_IN_DIGEST] = None
    """The format of the source's conversations, which `chat_ids` has in the tokenizer's ids; None if it has text."""
    chat_ids: Annotated[ChatIds | None, InDigest(called="chat")] = None

    @property
    def tokenizer_key(self) -> str:
        """What decides the tokenizer that a unit is encoded with: its stage, or a key of the recipe."""
        return "after.tokenizer" if self.tokenizer_task else "tokenizer.file"


@dataclass(slots=True, kw_only=True)
class EncodeResult(RunResult):
    """The result of encoding a unit."""

    text_bytes: int = 0
    stated_bytes: float = 0.0
    """Text that was read, as the spans state it."""
    tally: Tally = field(default_factory=Tally)
    """What cleaning did here."""
    kept: KeptText | None = None
    """How much text the tokenizer keeps; None if it rewrites none."""
    slow_encoder: str = ""
    """Why gigatoken did not encode; empty if it did."""


@dataclass(slots=True)
class _Encoded:
    """One batch after encoding."""

    tokens: Tokens
    offsets: Int64s
    rows: Rows
    measures: Float32s | None
    """`(documents, measures)`; None if the source is not cleaned when the set is mixed."""
    hits: Rows | None
    """`HIT_DTYPE (hits,)`, with the places of documents in the unit; None if the recipe names no evaluation set."""


def encode_unit(folder: Path, task: EncodeTask, report: Report) -> EncodeResult:
    """Encode a unit into a run in `folder`.

    Args:
        folder: an empty folder.
        task: the unit, its source and the tokenizer.
        report: called with (bytes of text, tokens) done so far.

    Raises:
        SourceError: the data cannot be read as the recipe says.
        InputError: the tokenizer does not keep the text that it promises to keep, or a pattern takes too many steps.
        RunError: the encoder and the reference disagree, or a document yielded EOS or BOS.
    """
    chat_tokens = None if task.chat is None else tuple(task.chat.name_tokens())
    encoder = load_encoder(task.tokenizer, task.tokenizer_sha256, task.tokenizer_task, chat_tokens)
    report.lap("start_s")
    stream = DocumentStream(task.source, task.unit.spans, most_bytes=task.unit.most_bytes)
    parts: list[_Encoded] = []
    kept = KeptText()
    marks = 1 if task.bos_id is None else 2
    names = task.source.clean.mix_measures()
    text_bytes = tokens = checked = 0
    # Clean, hash and encode, batch by batch.
    for spans, documents in stream:
        stream.refuse_malformed()
        report.lap("read_s")
        if not len(documents):
            continue
        rows = _start_rows(documents, spans)
        report.lap("hash_s")
        measures = None
        if names:
            measures = measure_documents(documents.seen.text, names)
            report.lap("measure_s")
        hits = None
        if task.evaluations:
            hits = load_finder(task.evaluations).find(documents.seen)
            hits["document"] += sum(len(part.rows) for part in parts)
            report.lap("hits_s")
        pieces, messages = documents, None
        if task.chat_ids is not None:
            messages = find_messages(documents.text, task.chat_ids)
            whose = messages.conversations
            pieces, spans = Documents(messages.make_pieces(), documents.rows[whose]), spans[whose]
        ids, offsets = _encode(encoder, pieces, spans, task)
        if encoder.kept is not None:
            encoder.kept.add(kept, pieces, ids, offsets)
        if messages is not None:
            ids, offsets = messages.join(ids, offsets)
        report.lap("encode_s")
        part = _Encoded(_narrow(ids, task), offsets, rows, measures, hits)
        part.rows["length"] = np.diff(offsets) + marks
        report.lap("narrow_s")
        checked += _check_reference(encoder, documents, part, task, done=checked)
        report.lap("check_s")
        # Keep the tokens; the text is no longer needed.
        parts.append(part)
        text_bytes += documents.num_bytes
        tokens += len(part.tokens) + marks * len(rows)
        report(text_bytes, tokens)
        del documents, pieces, messages, ids
    # Sort by hash and write.
    rows, files = _write_run(folder, parts, task)
    report.lap("write_s")
    return EncodeResult(
        labels=_span_labels(rows, task.unit),
        documents=len(rows),
        measures=names,
        text_bytes=text_bytes,
        stated_bytes=stream.stated_bytes,
        tally=stream.tally,
        kept=None if encoder.kept is None else kept,
        slow_encoder=encoder.slow_because,
        files=files,
    )


def _start_rows(documents: Documents, spans: UInt32s) -> Rows:
    hashes = hash_documents(documents.data, documents.offsets)
    rows = np.zeros(len(hashes), DOCUMENT_DTYPE)
    rows["hash_hi"], rows["hash_lo"] = hashes.T
    rows["span"], rows["row"] = spans, documents.rows
    return rows


def _encode(encoder: Encoder, documents: Documents, spans: UInt32s, task: EncodeTask) -> tuple[UInt32s, Int64s]:
    """Encode documents; name the first that cannot be encoded."""
    try:
        return encoder.encode(documents.text)
    except InputError:
        for index, span in enumerate(spans):
            try:
                encoder.encode(documents.text[index : index + 1])
            except InputError as error:
                place = describe_place(task.unit.spans[int(span)], int(documents.rows[index]))
                raise InputError(f"source {task.source.name!r}: {place}: {error}") from error
        raise


def _narrow(ids: UInt32s, task: EncodeTask) -> Tokens:
    """Return encoded tokens in the set's type.

    Raises:
        RunError: EOS or BOS is among them.
    """
    tokens = ids.astype(task.dtype, copy=False)
    for name, token_id in (("EOS", task.eos_id), ("BOS", task.bos_id)):
        # In blocks: of a document of 1 GB, the comparison alone would take 0.26 GB.
        blocks = (tokens[start : start + _BLOCK_TOKENS] for start in range(0, len(tokens), _BLOCK_TOKENS))
        if token_id is not None and any((block == token_id).any() for block in blocks):
            raise RunError(
                f"{task.source.name}: the encoder produced the {name} id {token_id} inside a document. The {name} "
                "token is also an ordinary entry of the vocabulary. Use a special token that is not."
            )
    return tokens


def _check_reference(encoder: Encoder, documents: Documents, part: _Encoded, task: EncodeTask, *, done: int) -> int:
    """Compare a sample of the encoded batch with the reference encoder; return how many documents were compared."""
    # By hash, so that another cut into batches checks the same documents; at least a few of each unit.
    chosen = np.flatnonzero(part.rows["hash_lo"] % np.uint64(CHECK_ONE_IN) == 0).tolist()
    if done + len(chosen) < CHECK_AT_LEAST:
        chosen = list(range(min(CHECK_AT_LEAST - done, len(part.rows))))
    lengths = np.diff(documents.offsets)
    chosen = [index for index in chosen if lengths[index] <= CHECK_MAX_BYTES]
    for index in chosen:
        text = documents.text[index].as_py()
        if task.chat is None:
            ids = encoder.encode_reference(text)
        elif (ids := encoder.encode_rendered(parse_conversation(text), task.chat)) is None:
            continue
        expected = np.array(ids, part.tokens.dtype)
        found = part.tokens[part.offsets[index] : part.offsets[index + 1]]
        if not np.array_equal(expected, found):
            span = task.unit.spans[int(part.rows["span"][index])]
            raise RunError(
                f"{task.source.name}: {span.name} row {part.rows['row'][index]}: the encoder disagrees with "
                f"`tokenizers`; expected {expected[:8].tolist()}..., got {found[:8].tolist()}... for {text[:200]!r}. "
                "Report this document; nothing was published."
            )
    return len(chosen)


def _write_run(folder: Path, parts: list[_Encoded], task: EncodeTask) -> tuple[Rows, dict[str, WrittenFile]]:
    """Write encoded documents in hash order between BOS, if any, and EOS; measures. Equal hashes keep their order.

    Returns:
        The rows, and the entries of the files.
    """
    # The order of the run: `order` has the places of its documents in the parts.
    rows = np.concatenate([part.rows for part in parts]) if parts else np.zeros(0, DOCUMENT_DTYPE)
    order = np.lexsort((rows["hash_lo"], rows["hash_hi"]))
    rows = rows[order]
    rows["start"] = np.cumsum(rows["length"], dtype=np.uint64) - rows["length"]
    # Cut the parts' tokens into documents and write these in order, without a copy of all.
    views: list[memoryview] = []
    for part in parts:
        view = part.tokens.data.cast("B")
        edges = (part.offsets * part.tokens.itemsize).tolist()
        views += [view[start:stop] for start, stop in itertools.pairwise(edges)]
    eos = np.array([task.eos_id], task.dtype).tobytes()
    bos = b"" if task.bos_id is None else np.array([task.bos_id], task.dtype).tobytes()
    with ChecksummedWriter(folder / TOKENS_FILE) as file:
        for start in range(0, len(order), _WRITE_DOCUMENTS):
            chunk: list[int] = order[start : start + _WRITE_DOCUMENTS].tolist()
            file.write(b"".join([piece for i in chunk for piece in (bos, views[i], eos)]))
    buffer = io.BytesIO()  # if numpy itself writes to a full disk, the error number is lost
    np.save(buffer, rows)
    files = {TOKENS_FILE: file.facts(), DOCUMENTS_FILE: write_checksummed(folder / DOCUMENTS_FILE, buffer.getvalue())}
    # What else documents have, in the same order.
    if names := task.source.clean.mix_measures():
        found = [part.measures for part in parts if part.measures is not None]
        measures = np.concatenate([*found, np.zeros((0, len(names)), MEASURES_DTYPE)])[order]
        files[MEASURES_FILE] = write_checksummed(folder / MEASURES_FILE, measures.tobytes())
    if task.evaluations:
        files[HITS_FILE] = write_checksummed(folder / HITS_FILE, _sort_hits(parts, order).tobytes())
    return rows, files


def _sort_hits(parts: list[_Encoded], order: Int64s) -> Rows:
    """Return the hits of an encoded unit in the order of its documents, which `order` gives by places in the parts."""
    hits = np.concatenate([np.zeros(0, HIT_DTYPE), *(part.hits for part in parts if part.hits is not None)])
    hits["document"] = np.argsort(order)[hits["document"]]
    return hits[np.argsort(hits["document"], kind="stable")]


def _span_labels(rows: Rows, unit: Unit) -> list[str]:
    """Label each span of the unit to encode with the digest of its documents: the revision of a file without one."""
    by_place = rows[np.lexsort((rows["row"], rows["span"]))]
    edges = np.searchsorted(by_place["span"], np.arange(len(unit.spans) + 1))
    labels: list[str] = []
    for index, span in enumerate(unit.spans):
        part = by_place[edges[index] : edges[index + 1]]
        hashes = np.stack([part["hash_hi"], part["hash_lo"]], axis=1)
        labels.append(span.label(xxhash.xxh3_64_hexdigest(hashes.tobytes())))
    return labels

"""Audit the tokens of a set, before the first GPU hour: read its shards, run all checks, write the result.

`audit` reads every token once, judges the totals, and looks up a document for each finding. It reads validation first,
because it then searches training for validation's n-grams. The counts are written as `tokens.parquet`, the findings as
`audit.json`, in a folder next to the set (`DIR.audit`). The set's own folder holds only the files in the manifest; an
audit is not one of them, because its result also depends on the version of the audit.

Costs, on one core: about 24 ns per token (40 million tokens per second), of which the counts by source alone are 6 (160
million), and a second or two at the end. The search for documents full of concentrated ids, which is made only when
asked for, takes about as long again.
Memory: a histogram a source, and samples of fixed size (`SAMPLED_...`); the longest document; one shard's document
table at a time. None of it grows with the number of shards.

Not judged: whether text is good, true or lawful. A set that is not whole is refused; `validate` says what is wrong.
"""

# pyright: reportUnknownMemberType=false
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from shards.audit.checks import (
    Check,
    check_bytes_per_token,
    check_conversations,
    check_ids,
    check_lengths,
    check_not_text,
    check_overlap,
    check_special,
    check_splits,
    concentration,
)
from shards.audit.concentrated_documents import Concentrated, find_concentrated
from shards.audit.figures import NGRAM_RATE, ShardAudit, Totals, audit_shard
from shards.audit.rules import VERDICT_WORDS, Verdict, rare_below
from shards.format.arrays import Float64s
from shards.format.reader import ShardSet
from shards.stores.files import atomic_open, make_folder, write_text
from shards.stores.open import AnyPath, open_store
from shards.stores.store import check_outside, folder_beside
from shards.terminal.display import JsonObject, format_json
from shards.terminal.reporter import Advance, Progress, count_up, no_progress
from shards.terminal.workers import map_tasks
from shards.trace.locate import cut_tokens, find_places
from shards.validation.files import require_whole

SAMPLED_VAL_TOKENS = 1 << 20
"""Validation tokens searched for in training, by one in four of their n-grams."""

CONTEXT_TOKENS = 64
"""Tokens decoded on each side of an example."""

AUDIT_VERSION = 10
"""The version in audit.json. A report repeats an audit of another version."""

REPORT_FILE = "audit.json"


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit."""

    out: Path
    data: JsonObject
    """What audit.json holds. Everything in it depends on the set alone."""
    checks: list[Check]
    concentrated: Concentrated | None

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all checks."""
        return self.data["verdict"]

    def check(self, name: str) -> Check:
        """Return the check of this name.

        Raises:
            KeyError: no check has this name.
        """
        return {check.name: check for check in self.checks}[name]


def audit(
    path: AnyPath,
    *,
    out: Path | None = None,
    workers: int = 1,
    block_list: bool = False,
    progress: Progress = no_progress,
) -> AuditResult:
    """Audit a shard set; write `tokens.parquet` and `audit.json`.

    Args:
        path: the set's folder, or its address.
        out: the folder to write to; `DIR.audit` next to the set's folder when None. Its two files are replaced.
        workers: number of processes; the report does not depend on it.
        block_list: look for documents full of concentrated ids, and return them in `concentrated`.
        progress: called with tokens done and tokens in all.

    Raises:
        ShardSetError: the set is not whole.
        ValueError: the tokenizer's entries have no fixed bytes, `out` is in the set's folder, or is None for a set at
            an address.
        OSError: a file cannot be read or written.
    """
    store = open_store(path)
    out = folder_beside(store, "audit") if out is None else out
    check_outside(out, store)
    # A set that is not whole would give figures that nobody can explain.
    shard_set = require_whole(store)
    val_rate = choose_val_rate(shard_set)
    # The list of concentrated documents takes passes of its own; all are one progress.
    size, train = shard_set.shards.num_tokens, shard_set.splits["train"].num_tokens
    advance = count_up(progress, size if not block_list else 2 * size + train)
    totals = _read_shards(shard_set, val_rate, workers, advance)
    below = rare_below(totals.train.tokens)
    bits = concentration(totals.train)
    # In the order of the report: what nobody should train on comes first.
    checks = [
        check_special(totals, shard_set),
        *([check_conversations(totals)] if shard_set.manifest.chat else []),
        check_overlap(totals, val_rate),
        *check_ids(totals, bits, below=below),
        check_bytes_per_token(totals),
        check_lengths(totals),
        check_not_text(shard_set),
        check_splits(shard_set),
    ]
    concentrated = None
    if block_list:
        concentrated = find_concentrated(shard_set, totals, below=below, workers=workers, advance=advance)
    _show_examples(shard_set, checks)
    data: JsonObject = {
        "manifest_sha256": shard_set.manifest_sha256,
        "audit_version": AUDIT_VERSION,
        "verdict": max((check.verdict for check in checks), key=[*VERDICT_WORDS].index),
        "shards": len(shard_set.shards),
        "tokens": totals.val.tokens + totals.train.tokens,
        "documents": sum(int(split.lengths.sum()) for split in totals.both),
        "rare_below": below,
        "one_in": {"documents_of_validation": val_rate, "ngrams_of_validation": NGRAM_RATE},
        "checks": [asdict(check) for check in checks],
    }
    make_folder(out)
    # A report takes audit.json as the sign that the counts are of the same audit.
    (out / REPORT_FILE).unlink(missing_ok=True)
    write_token_counts(out / TOKENS_FILE, totals, bits)
    write_text(out / REPORT_FILE, format_json(data) + "\n")
    return AuditResult(out, data, checks, concentrated)


def choose_val_rate(shard_set: ShardSet) -> int:
    """Return the N of one in N validation documents that `audit` searches for: the size of the sample is bounded."""
    val = shard_set.manifest.splits.get("val")
    return max(1, -(-val.tokens // SAMPLED_VAL_TOKENS)) if val else 1


def _read_shards(shard_set: ShardSet, val_rate: int, workers: int, advance: Advance) -> Totals:
    """Read every shard, validation first, and add up."""
    totals = Totals(shard_set.manifest.source_names, shard_set.vocabulary)
    for split in ("val", "train"):
        ngrams, _ = np.hstack(totals.val.ngrams)
        search = ShardAudit(shard_set, val_rate, np.unique(ngrams))
        members = [number for number, shard in enumerate(shard_set.shards) if shard.entry.split == split]
        for number, figures in map_tasks(audit_shard, search, members, workers):
            totals.add(figures)
            advance(shard_set.shards[number].num_tokens)
    return totals


def _show_examples(shard_set: ShardSet, checks: Sequence[Check]) -> None:
    """Look up the documents that the findings name: their origin, and the text around the marked part."""
    by_shard: defaultdict[int, list[tuple[JsonObject, int, int | None]]] = defaultdict(list)
    for row in (row for check in checks for row in check.rows if "example" in row):
        place, token = row.pop("example")
        number, document = divmod(place, 1 << 32)
        by_shard[number].append((row, document, token))
    # Each document table is read once, for all examples in its shard.
    for number, rows in by_shard.items():
        shard = shard_set.shards[number]
        places = {place.document: place for place in find_places(shard, [document for _, document, _ in rows])}
        for row, document, token in rows:
            place = places[document]
            tokens = shard.read(place.start, place.start + place.tokens)
            # Without a token to mark, the beginning is shown.
            first, last = 0, min(CONTEXT_TOKENS, len(tokens) - 1)
            if token is not None:
                first = int((tokens == token).argmax())
                last = first + 1
            low = max(0, first - CONTEXT_TOKENS)
            around = tokens[low : last + CONTEXT_TOKENS + 1]  # the last one, such as EOS, is not shown
            # The prefix is at the beginning of a document.
            vocabulary = replace(shard_set.vocabulary, prefix=b"") if low else shard_set.vocabulary
            _, excerpt = cut_tokens(around, first - low, last - low, vocabulary)
            row["examples"] = [{**place.to_dict(), "position": first, **asdict(excerpt)}]


TOKENS_FILE = "tokens.parquet"


def write_token_counts(path: Path, totals: Totals, bits: tuple[Float64s, Float64s]) -> None:
    """Write the audit's `tokens.parquet`: the counts, one row for each id, in order of ids.

    Columns: `id`, `bytes`, `text` (U+FFFD for bytes that are not UTF-8 alone), `special`; of training `count`,
    the `documents` that hold it, `document_bits` and `source_bits` (`checks.check_ids`); of
    validation `val_count`; and `count_SOURCE` of training for each source.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    vocabulary, entries = totals.vocabulary, list(totals.vocabulary.entries)
    columns: dict[str, Any] = {
        "id": pa.array(np.arange(len(vocabulary), dtype=np.uint32)),
        "bytes": pa.array(entries, pa.binary()),
        "text": pa.array([entry.decode("utf-8", "replace") for entry in entries], pa.string()),
        "special": pa.array(vocabulary.special_mask()),
        "count": pa.array(totals.train.id_counts),
        "documents": pa.array(totals.train.documents),
        "document_bits": pa.array(bits[0]),
        "source_bits": pa.array(bits[1]),
        "val_count": pa.array(totals.val.id_counts),
    }
    # A column for each source: a reader of Parquet reads only those that it asks for.
    for name, counts in zip(totals.source_names, totals.train.counts, strict=True):
        columns[f"count_{name}"] = pa.array(counts)
    with atomic_open(path) as file:
        pq.write_table(pa.table(columns), file, compression="zstd")


def read_values(folder: Path, name: str) -> Any:
    """Return a column of an audit's `tokens.parquet`, in its folder, as an Arrow array."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(folder / TOKENS_FILE) as file:
        return cast("Any", file.read(columns=[name], use_threads=False).column(name)).combine_chunks()

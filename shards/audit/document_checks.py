"""The audit's checks of documents: lengths, repeats, validation seen in training.

Lengths and exact repeats are judged over the whole set. Validation is searched for by a sample of its documents and
n-grams, chosen by content. So a share is unbiased for any size of set.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shards.audit.check_result import Check, Example, Finding
from shards.audit.histogram import bin_middles, coarsen, quantile
from shards.audit.rules import (
    BAD_LEAKED_SHARE,
    LEAKED,
    MAX_LONGEST_SHARE,
    MAX_SEEN_SHARE,
    MAX_SHORT_SHARE,
    SHORT_TOKENS,
    Verdict,
)
from shards.audit.shard_figures import NGRAM_TOKENS
from shards.audit.totals import Totals, find_firsts, join_ngrams
from shards.errors import plural
from shards.format.reader import ShardSet
from shards.validation.duplicates import check_duplicates

MAX_FINDINGS = 20


def check_lengths(totals: Totals) -> Check:
    """Describe document lengths by source, in tokens with EOS; both splits."""
    middles = bin_middles()
    rows: list[Finding] = []
    odd: list[str] = []
    for number, name in enumerate(totals.source_names):
        counts = totals.train.lengths[number] + totals.val.lengths[number]
        documents = int(counts.sum())
        if not documents:
            continue
        tokens = int(totals.source_tokens[number])
        longest = int(max(totals.train.longest[number], totals.val.longest[number]))
        # Both splits count: a set is one text, however it is cut.
        short = int(counts[middles < SHORT_TOKENS].sum()) / documents
        values: dict[str, Any] = {"source": name, "documents": documents, "mean": round(tokens / documents, 1)}
        shortest = int(min(totals.train.shortest[number], totals.val.shortest[number]))
        values["shortest"] = shortest
        values |= {
            f"p{share}": quantile(counts, share / 100, shortest=shortest, longest=longest) for share in (5, 50, 95, 99)
        }
        values |= {"longest": longest, "short_share": round(short, 4), "histogram": coarsen(counts)}
        rows.append(Finding(values))
        if short > MAX_SHORT_SHARE:
            odd.append(f"{name}: {short:.0%} of the documents have fewer than {SHORT_TOKENS} tokens")
        # In a small source, one long document says nothing.
        if documents >= 100 and longest > MAX_LONGEST_SHARE * tokens:
            odd.append(f"{name}: one document has {longest / tokens:.0%} of the tokens")
    summary = "; ".join(odd) or "no source is mostly fragments; no document dominates a source of 100 or more"
    return Check("lengths", "look" if odd else "ok", summary, rows)


def check_repeats(shard_set: ShardSet) -> Check:
    """Find equal documents (by content hash) in both splits, or more often than the source's epochs allow. Exact."""
    epochs = shard_set.manifest.epochs
    problems = check_duplicates(shard_set.shards, epochs)
    rows = [Finding({"kind": problem.kind, "where": problem.where, "message": problem.message}) for problem in problems]
    if not rows:
        several = ", ".join(f"{name} up to {plural(count, 'time')}" for name, count in epochs.items() if count > 1)
        often = f"no document occurs more often than its source's epochs allow ({several})"
        twice = often if several else "no two documents are equal"
        return Check("repeated_documents", "ok", f"{twice}; no validation document is equal to a training document")
    summary = "equal documents are in both splits, or occur more often than their source's epochs allow; run validate"
    return Check("repeated_documents", "bad", summary, rows)


def check_overlap(totals: Totals, val_rate: int) -> Check:
    """Find validation documents that are not equal to a training document and share nearly all their n-grams.

    One in `val_rate` of the validation documents was searched for.
    """
    ngrams, found = join_ngrams(totals.val.ngrams), join_ngrams(totals.train.ngrams)
    if not len(ngrams):
        return Check("validation_overlap", "ok", "no validation split, or none with a document of more than 16 tokens")
    seen = np.isin(ngrams["hash"], found["hash"])
    at = np.searchsorted(found["hash"], ngrams["hash"])
    # N-grams of one document side by side.
    order = np.lexsort((ngrams["document"], ngrams["shard"]))
    begins = find_firsts(ngrams["shard"][order], ngrams["document"][order])
    held = np.diff(np.append(begins, len(order)))
    shares = np.add.reduceat(seen[order].astype(np.int64), begins) / held
    # Documents nearly all of whose n-grams training holds.
    leaked = np.flatnonzero(shares >= LEAKED)
    leaked = leaked[np.argsort(-shares[leaked], kind="stable")]
    rows: list[Finding] = []
    for index in leaked[:MAX_FINDINGS].tolist():
        members = order[begins[index] : begins[index] + held[index]]
        sources = found[at[members[seen[members]]]]
        # The training document with most of these n-grams is shown beside it.
        spots, counts = np.unique(sources[["shard", "document"]], return_counts=True)
        where = spots[np.argmax(counts)]
        examples = [
            Example(int(ngrams["shard"][members[0]]), int(ngrams["document"][members[0]])),
            Example(int(where["shard"]), int(where["document"])),
        ]
        rows.append(Finding({"seen": round(float(shares[index]), 3)}, examples))
    share, total_seen = len(leaked) / len(begins), float(seen.mean())
    verdict: Verdict = "bad" if share > BAD_LEAKED_SHARE else "look" if rows or total_seen > MAX_SEEN_SHARE else "ok"
    sample = "" if val_rate == 1 else f" (1 in {val_rate} searched for)"
    summary = (
        f"{len(leaked):,} of {plural(len(begins), 'validation document')}{sample} "
        f"{'is a near-duplicate' if len(leaked) == 1 else 'are near-duplicates'} of training text: {LEAKED:.0%} of "
        f"their {NGRAM_TOKENS}-token passages, or more, occur there. Of all validation passages {total_seen:.1%} do."
    )
    if verdict != "ok":
        summary += " The loss on them is lower than on new text."
    return Check("validation_overlap", verdict, summary, rows)

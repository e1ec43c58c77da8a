"""The audit's checks: of ids (special ones inside documents, never seen, rare, concentrated), bytes per token;
and of documents (lengths, validation seen in training).

The checks of ids use counts alone, so they cost the same for any size of set. They judge the training split; only the
check of special ids includes validation. Lengths are judged over the whole set. Validation is
searched for by a sample of its documents and n-grams, chosen by content. So a share is unbiased for any size of set.

The result of a check is a `Check`: a verdict, rows of findings, and documents as examples.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from shards.audit.figures import (
    MAX_MISPLACED,
    NGRAM_TOKENS,
    Figures,
    Totals,
    bin_middles,
    coarsen,
    quantile,
)
from shards.audit.not_text import MOST_CHARACTERS, NotText, describe_not_text, look_for_not_text
from shards.audit.rules import (
    BAD_LEAKED_SHARE,
    LEAKED,
    LOOKED_AT_DOCUMENTS,
    LOOKED_AT_SHARDS,
    LOW_BYTES_PER_TOKEN,
    MAX_LONGEST_SHARE,
    MAX_RARE_SHARE,
    MAX_SEEN_SHARE,
    MAX_SHORT_SHARE,
    MAX_UNSEEN_SHARE,
    MIN_EXAMPLES,
    RARE_TOLERANCE,
    SHORT_TOKENS,
    SUSPICIOUS_BITS,
    Verdict,
    expected_id_counts,
)
from shards.audit.split_names import find_splits, has_split_word
from shards.errors import plural
from shards.format.arrays import Bools, Float64s, Int64s
from shards.format.chat import ROLE_MARKS, locate_messages, split_special
from shards.format.reader import ShardSet
from shards.format.shard import iter_documents
from shards.terminal.display import JsonObject, Table

MAX_IDS = 50
"""Maximum ids that a check lists; tokens.parquet has all of them."""


@dataclass
class Check:
    """The result of one check: its name for programs, the verdict, a sentence, and rows of findings, worst first.

    A row's `example` is the place of a document (`Figures`), and the id whose first occurrence is marked, or None. When
    it has been looked up, `examples` is there instead.
    """

    name: str
    verdict: Verdict
    summary: str
    rows: Table = field(default_factory=Table)


def check_special(totals: Totals, shard_set: ShardSet) -> Check:
    """Check for special ids inside documents. Only EOS may occur, at each document's end, and BOS at its beginning;
    and around what messages say those of the format.

    An unknown token, which is special in most tokenizers, stands for text; the manifest counts it (`rewriting`).
    """
    inside, special = dict[int, int](), totals.vocabulary.special
    bos_id, chat = shard_set.bos_id, shard_set.manifest.chat
    around = {role: before + chat.after for role, before in chat.before.items()} if chat else {}
    for split in totals.both:
        # EOS once a document, and BOS if the set has one, are in place: what is left is inside documents.
        counts = split.id_counts
        for token in (shard_set.eos_id,) if bos_id is None else (shard_set.eos_id, bos_id):
            counts[token] -= int(split.lengths.sum())
        for role, text in around.items():
            for part in filter(special.__contains__, split_special(text, special)):
                counts[special[part]] -= split.messages[role]
        if totals.vocabulary.unknown is not None:
            counts[totals.vocabulary.unknown] = 0
        for token in np.flatnonzero(totals.vocabulary.special_mask() & (counts != 0)).tolist():
            inside[token] = inside.get(token, 0) + int(counts[token])
    misplaced = totals.val.misplaced + totals.train.misplaced
    if not inside and not misplaced:
        begins = "" if bos_id is None else " and BOS once at the beginning"
        return Check("special_ids", "ok", f"no special id inside a document; EOS once at the end{begins} of each")
    rows = [
        {"id": token, "text": totals.vocabulary.spell(token), "example": (place, token)}
        for place, token in misplaced[:MAX_MISPLACED]
    ]
    names = ", ".join(f"{totals.vocabulary.spell(token)} {count:,}" for token, count in sorted(inside.items()))
    return Check("special_ids", "bad", f"special ids inside documents: {names or 'EOS or BOS out of place'}", rows)


def check_ids(totals: Totals, bits: tuple[Float64s, Float64s], *, below: int) -> list[Check]:
    """Check for ids that are concentrated, that never occur in training, and that occur fewer than `below` times.

    Concentrated ids occur in few documents or in one small source, as a flood of strange documents causes. An id's
    *concentration* is the information, in bits, that an occurrence gives about its place. It is the sum of:

    - `document_bits`: log2 of how many times fewer documents hold the id than if each source scattered its
      occurrences over its documents by chance (in proportion to their lengths);
    - `source_bits`: the Kullback-Leibler divergence of its occurrences by source from the mix: log2(1 / share) for an
      id of one source only.

    Words that belong to a small source by nature have about log2(1 / share) bits; words of one flood of documents have
    more. Each id without a special meaning is in one of the three checks, except single bytes that never occur: 13 of
    them are never in UTF-8.

    Args:
        totals: the figures.
        bits: `concentration` of training.
        below: the count below which an id is rare.
    """
    counts, tokens, size = totals.train.id_counts, totals.train.tokens, len(totals.vocabulary)
    lengths, plain = totals.vocabulary.entry_lengths(), ~totals.vocabulary.special_mask()
    expected = expected_id_counts(tokens, size)

    def worst(which: Bools, key: Int64s | Float64s) -> list[int]:
        ids = np.flatnonzero(which & plain)
        return ids[np.argsort(key[ids], kind="stable")].tolist()

    # What is concentrated is listed first, whatever the verdict.
    both = bits[0] + bits[1]
    concentrated = worst(counts >= below, -both)
    many = int((both[concentrated] >= SUSPICIOUS_BITS).sum())
    rows = [_describe_id(token, totals) for token in concentrated[:MAX_IDS]]
    for row, token in zip(rows, concentrated, strict=False):
        parts = {"bits": both, "document_bits": bits[0], "source_bits": bits[1]}
        row |= {name: round(float(part[token]), 2) for name, part in parts.items()}
    summary = f"in few documents or in one small source ({SUSPICIOUS_BITS:g} bits or more): {plural(many, 'id')}"
    checks = [Check("concentrated", "look" if many else "ok", summary, rows)]

    # A BPE has entries that occur only as parts of longer ones. In a small set, they are more than Zipf's law explains.
    # A long entry that never occurs says most about the text that the tokenizer was trained on.
    unseen = worst((counts == 0) & (lengths != 1), -lengths)
    large, too_many = expected[-1] >= MIN_EXAMPLES, len(unseen) > MAX_UNSEEN_SHARE * size
    explained = len(unseen) <= round(float(np.exp(-expected).sum()))
    verdict: Verdict = "bad" if large and too_many else "look" if not explained and (large or too_many) else "ok"
    single = int((plain & (counts == 0) & (lengths == 1)).sum())
    summary = f"never in training: {len(unseen):,} of {plural(size, 'id')}, and {plural(single, 'single byte')}"
    if not large:
        summary += f" (up to {MAX_UNSEEN_SHARE:.0%} is fine for a set this small)"
    texts: Table = [{"id": token, "text": totals.vocabulary.spell(token)} for token in unseen[:MAX_IDS]]
    checks.append(Check("never_seen", verdict, summary, texts))

    # An id that never occurs is trained as little as a rare one.
    rare = worst((counts > 0) & (counts < below), counts)
    share, usual = (len(rare) + len(unseen)) / max(1, size), float((expected < below).mean())
    verdict = "look" if rare and share > usual + RARE_TOLERANCE else "ok"
    if share > MAX_RARE_SHARE and expected[-1] >= below:
        verdict = "bad"
    summary = (
        f"fewer than {plural(below, 'time')} in training: {plural(len(rare), 'id')}; with those never there, "
        f"{share:.1%} of the vocabulary; a set of its size can be expected to have {usual:.1%}"
    )
    return [*checks, Check("rare", verdict, summary, [_describe_id(token, totals) for token in rare[:MAX_IDS]])]


def concentration(split: Figures) -> tuple[Float64s, Float64s]:
    """Return the concentration of ids, in bits: `document_bits` and `source_bits`, float64, at least 0."""
    counts = split.counts
    tokens = counts.sum(axis=1)
    total = counts.sum(axis=0)
    middles = bin_middles()
    # How many documents would hold each id if every source scattered it by chance.
    expected = np.zeros(counts.shape[1])
    for number in np.flatnonzero(tokens).tolist():
        bins = np.flatnonzero(split.lengths[number])
        weights = split.lengths[number, bins].astype(np.float64)
        shares = middles[bins] / float(tokens[number])
        for first in range(0, len(expected), 1024):  # 1,024 ids by a few hundred bins: a few MB at a time
            scattered = -np.expm1(-np.outer(counts[number, first : first + 1024], shares))
            expected[first : first + 1024] += scattered @ weights
    document_bits = np.log2(np.maximum(expected / np.maximum(split.documents, 1), 1.0))
    # How far the shares of an id in the sources are from those of all tokens.
    mix = tokens / max(1, int(tokens.sum()))
    held = counts / np.maximum(total, 1)
    ratio = np.divide(held, mix[:, None], out=np.ones_like(held), where=held > 0)
    source_bits = np.maximum((held * np.log2(ratio)).sum(axis=0), 0.0)
    return document_bits, source_bits


def check_bytes_per_token(totals: Totals) -> Check:
    """Check the bytes per token of each source against those of the whole set.

    The tokenizer's sample is drawn in the proportions of the mix and is not part of a set, so the mix is used instead.
    """
    held, tokens = totals.train.counts @ totals.vocabulary.text_lengths(), totals.train.counts.sum(axis=1)
    whole = float(held.sum()) / max(1, totals.train.tokens)
    rows: Table = []
    for name, size, number in zip(totals.source_names, held.tolist(), tokens.tolist(), strict=True):
        if number:
            ratio = size / number
            rows.append(
                {
                    "source": name,
                    "tokens": number,
                    "bytes": size,
                    "bytes_per_token": round(ratio, 3),
                    "of_the_set": round(ratio / max(whole, 1e-9), 3),
                }
            )
    low = ", ".join(row["source"] for row in rows if row["of_the_set"] < LOW_BYTES_PER_TOKEN)
    summary = f"{whole:.2f} bytes per token over the set"
    if totals.vocabulary.keeps != "bytes":
        summary += ", of the text as the tokenizer rewrote it"
    if low:
        summary += f"; {low} below {LOW_BYTES_PER_TOKEN:.0%} of that: the tokenizer does not know its text"
    return Check("bytes_per_token", "look" if low else "ok", summary, rows)


def _describe_id(token: int, totals: Totals) -> JsonObject:
    """Return the row of an id that occurs in training."""
    split = totals.train
    # Sources without the id are left out.
    by_source = dict(zip(totals.source_names, split.counts[:, token].tolist(), strict=True))
    return {
        "id": token,
        "text": totals.vocabulary.spell(token),
        "count": sum(by_source.values()),
        "documents": int(split.documents[token]),
        "sources": {name: count for name, count in by_source.items() if count},
        "example": (int(split.example[token]), token),
    }


MAX_DOCUMENTS = 20
"""Maximum validation documents that a check lists."""


def check_lengths(totals: Totals) -> Check:
    """Check document lengths by source, in tokens with EOS; both splits."""
    middles = bin_middles()
    rows: Table = []
    odd: list[str] = []
    # Both splits count: a set is one text, however it is cut.
    val, train = totals.both
    columns = (
        val.lengths + train.lengths,
        totals.source_tokens.tolist(),
        np.minimum(val.shortest, train.shortest).tolist(),
        np.maximum(val.longest, train.longest).tolist(),
    )
    for name, counts, tokens, shortest, longest in zip(totals.source_names, *columns, strict=True):
        documents = int(counts.sum())
        if not documents:
            continue
        short = int(counts[middles < SHORT_TOKENS].sum()) / documents
        row: JsonObject = {
            "source": name,
            "documents": documents,
            "mean": round(tokens / documents, 1),
            "shortest": shortest,
            **{
                f"p{share}": quantile(counts, share / 100, shortest=shortest, longest=longest)
                for share in (5, 50, 95, 99)
            },
            "longest": longest,
            "short_share": round(short, 4),
            "histogram": coarsen(counts),
        }
        rows.append(row)
        if short > MAX_SHORT_SHARE:
            odd.append(f"{name}: {short:.0%} of the documents have fewer than {SHORT_TOKENS} tokens")
        # In a small source, one long document says nothing.
        if documents >= 100 and longest > MAX_LONGEST_SHARE * tokens:
            odd.append(f"{name}: one document has {longest / tokens:.0%} of the tokens")
    summary = "; ".join(odd) or "no source is mostly fragments; no document dominates a source of 100 or more"
    return Check("lengths", "look" if odd else "ok", summary, rows)


def check_not_text(shard_set: ShardSet) -> Check:
    """Check the first documents of some shards, which are in random order, for what is not text, by source."""
    looked: dict[str, NotText] = defaultdict(dict)
    shards = shard_set.shards[:: -(-len(shard_set.shards) // LOOKED_AT_SHARDS)]
    for shard in shards:
        rows = (row for batch in iter_documents(shard, batch_size=LOOKED_AT_DOCUMENTS) for row in batch.to_pylist())
        for row in islice(rows, LOOKED_AT_DOCUMENTS // len(shards)):
            tokens = shard.read(row["start"], row["start"] + min(row["length"] - 1, MOST_CHARACTERS))
            text = shard_set.vocabulary.decode_document(tokens)
            chat = shard_set.manifest.chat
            if messages := [*locate_messages(chat, shard_set.vocabulary, tokens)] if chat else []:
                text = b"\n\n\n".join([shard_set.vocabulary.decode(tokens[first:stop]) for *_, first, stop in messages])
            where = f"{row['unit']} row {row['row']}"
            look_for_not_text(looked[row["source"]], text.decode("utf-8", "replace"), where)
    lines = [f"{name}: {line}" for name, found in looked.items() for line in describe_not_text(found)]
    summary = "almost nothing but prose and code: no HTML, chats, logs, mojibake and the like"
    return Check("not_text", "look" if lines else "ok", ". ".join(lines) or summary)


def check_conversations(totals: Totals) -> Check:
    """Count conversations, and their messages by role."""
    counts = totals.val.messages + totals.train.messages
    number, *own = (counts[name] for name in ("conversations", *ROLE_MARKS))
    roles = ", ".join(f"{role} {count:,}" for role, count in zip(ROLE_MARKS, own, strict=True))
    summary = f"{plural(number, 'conversation')} of {sum(own) / max(1, number):.1f} messages: {roles}"
    return Check("conversations", "ok", summary)


def check_splits(shard_set: ShardSet) -> Check:
    """Check whether documents come from files whose names are those of a test or validation split, by source."""
    import pyarrow as pa

    found: dict[str, set[str]] = defaultdict(set)
    for shard in shard_set.shards:
        table: Any = pa.Table.from_batches(iter_documents(shard, ["source", "unit"])).unify_dictionaries()
        for row in table.group_by(["source", "unit"]).aggregate([]).to_pylist():
            name = row["unit"].rpartition("@")[0]
            if has_split_word(name) or "train" in name.lower():
                found[row["source"]].add(name)
    rows: Table = [
        {"source": source, "file": name} for source in sorted(found) for name in sorted(find_splits(found[source]))
    ]
    if not rows:
        return Check("splits", "ok", "no file is named like a test or validation split")
    summary = (
        f"{plural(len(rows), 'file')} named like a test or validation split, such as {rows[0]['file']} of "
        f"{rows[0]['source']}"
    )
    return Check("splits", "look", summary, rows[:MAX_DOCUMENTS])


def check_overlap(totals: Totals, val_rate: int) -> Check:
    """Check for validation documents that share nearly all their n-grams with an unequal training document.

    One in `val_rate` of the validation documents was searched for.
    """
    hashes, places = np.hstack(totals.val.ngrams)
    if not len(hashes):
        return Check("validation_overlap", "ok", "no validation split, or none with a document of more than 16 tokens")
    seen = totals.train.seen[np.unique(hashes, return_inverse=True)[1]]
    # N-grams of one document are side by side.
    documents, begins, held = np.unique(places, return_index=True, return_counts=True)
    shares = np.add.reduceat(seen.astype(np.int64), begins) / held
    # Documents nearly all of whose n-grams training holds.
    leaked = np.flatnonzero(shares >= LEAKED)
    leaked = leaked[np.argsort(-shares[leaked], kind="stable")]
    rows: Table = [
        {"seen": round(float(shares[index]), 3), "example": (int(documents[index]), None)}
        for index in leaked[:MAX_DOCUMENTS].tolist()
    ]
    share, total_seen = len(leaked) / len(begins), float(seen.mean())
    verdict: Verdict = "bad" if share > BAD_LEAKED_SHARE else "look" if rows or total_seen > MAX_SEEN_SHARE else "ok"
    sample = "" if val_rate == 1 else f" (1 in {val_rate} searched for)"
    summary = (
        f"nearly whole in training ({LEAKED:.0%} of the {NGRAM_TOKENS}-token passages occur there, perhaps in other "
        f"documents): {len(leaked):,} of {plural(len(begins), 'validation document')}{sample}. {total_seen:.1%} of all "
        "validation passages also occur in training"
    )
    if verdict != "ok":
        summary += "; the loss on them is lower than on new text"
    return Check("validation_overlap", verdict, summary, rows)

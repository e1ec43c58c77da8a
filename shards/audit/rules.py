"""The rules by which a check of the audit is *ok*, *worth a look* or *bad*: words, limits and their sources.

*bad* means that nobody should train on the set: it breaks a rule of its format, most of it repeats itself, or it is
large enough to train its vocabulary and leaves much of it untrained. A finding that may be intended, or that the size
of a small set explains, is never bad. The command's help, the page and the card take their words from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shards.audit.not_text import SHARE_TOLD

if TYPE_CHECKING:
    from shards.format.arrays import Float64s

Verdict = Literal["ok", "look", "bad"]
"""Verdicts as programs read them, worst last."""

VERDICT_WORDS: dict[Verdict, str] = {"ok": "ok", "look": "worth a look", "bad": "bad"}
"""Verdicts as people read them."""

VERDICT_ADVICE: dict[Verdict, str] = {
    "ok": "there is nothing to do",
    "look": "read the findings before you pay for a training run (the set can be trained on)",
    "bad": "do not train on this set",
}

MIN_EXAMPLES = 100
"""Source: Gowda and May (2020), Finding the Optimal Vocabulary Size for Neural Machine Translation: take the largest
vocabulary of which at least 95% of the entries have 100 training examples or more."""

RARE_SHARE = 1e-8
"""In a large set, an id is rare below this share of its tokens: less than once in 190 batches of 524,288 tokens. AdamW
(beta2 0.95 to 0.999) has then mostly forgotten one occurrence before the next comes. Our own rule."""

RARE_TOLERANCE = 0.01
"""Share of the vocabulary: up to this many more rare ids than the size of the set explains are ok."""

MAX_RARE_SHARE = 0.5
"""A vocabulary with a larger share of rare or never-seen ids is bad: most of the embedding would not be trained."""

MAX_UNSEEN_SHARE = 0.05
"""A vocabulary with a larger share of never-seen ids is bad, by the 95% of Gowda and May. In a set too small for its
vocabulary, it is worth a look: up to this share are entries that occur only as parts of longer ones."""

SUSPICIOUS_BITS = 6.0
"""An id this concentrated is worth a look: it is in one 64th of the documents that chance would give it."""

FEW_TOKENS = 1 << 14
FEW_SHARE = 3e-5
MAX_FEW_SHARE = 0.01
"""An id is concentrated if more than half of its occurrences are in documents with few tokens: `FEW_TOKENS`, in sets of
more than 550 M tokens this share of them; never more than `MAX_FEW_SHARE`. Our own rule, by 60 documents planted in
sets of 2 and 59 M tokens of prose, mathematics and code."""

FILLED_SHARE = 0.05
FILLED_FEW_SHARE = 2e-3
"""If an id makes up `FILLED_SHARE` of the tokens of these documents, they may hold this share of the set."""

LISTED_SHARE = 0.15
MIN_LISTED = 2
"""A document is listed if concentrated ids are this share of them and of its other tokens with letters, and occur so
often in it. Measured with 60 planted documents: all are listed, and 2 and 9 of 1,564 others, in 2 M tokens with
tokenizers of 3,000 and 8,192 ids that were trained on them; 15, and 14 of 25,372 others, in 36 M tokens, where most
of their words are cut into ids that other documents have, too."""

LOOK_LISTED_SHARE = 0.01
"""A block list that takes a larger share of a source's tokens is worth a look; patterns may drop as much by default."""

LOW_BYTES_PER_TOKEN = 0.6
"""The tokenizer does not know the text of a source with less than this share of the set's bytes per token."""

SHORT_TOKENS = 16
MAX_SHORT_SHARE = 0.05
"""A source with more documents shorter than `SHORT_TOKENS` is worth a look: much of it may be fragments."""

MAX_LONGEST_SHARE = 0.05
"""A source of 100 documents or more with a larger share of its tokens in one of them is worth a look."""

LEAKED = 0.8
"""A validation document counts as seen if this share of its n-grams is. Source: "dirty" at 80% in Llama 2
(arXiv:2307.09288, appendix A.6)."""

BAD_LEAKED_SHARE = 0.5
"""Share of the validation documents that are seen in training. Above it, validation loss measures memorization."""

MAX_SEEN_SHARE = 0.05
"""A larger share of all validation n-grams seen in training is worth a look."""

LOOKED_AT_SHARDS = 16
LOOKED_AT_DOCUMENTS = 512
"""What is not text is looked for in so many documents, of so many shards."""

RULES = (
    ("special_ids", "Bad: a special id inside a document, or EOS (BOS) anywhere but once at its end (beginning)."),
    (
        "validation_overlap",
        f"Documents that are not equal may share text. A validation document counts as seen when training holds "
        f"{LEAKED:.0%} of its 16-token n-grams. Worth a look: any such document, or {MAX_SEEN_SHARE:.0%} of all "
        f"n-grams. Bad: more than {BAD_LEAKED_SHARE:.0%} of the validation documents.",
    ),
    (
        "concentrated",
        f"Worth a look: ids of {SUSPICIOUS_BITS:g} bits or more, which sit in few documents or in one small source. "
        "--write-block-list judges ids more strictly: one is concentrated if documents with few tokens hold more than "
        f"half of its occurrences (few: {FEW_TOKENS:,}, or {FEW_SHARE:.3%} of a large set; {FILLED_FEW_SHARE:.1%} if "
        f"it makes up {FILLED_SHARE:.0%} of them). It lists documents in which {LISTED_SHARE:.0%} of the tokens with "
        "letters are concentrated.",
    ),
    (
        "never_seen",
        "Worth a look: more ids than the size of the set explains (Zipf's law); in a set that is small for its "
        f"vocabulary, only if they are more than {MAX_UNSEEN_SHARE:.0%} of the ids. "
        f"Bad: more than {MAX_UNSEEN_SHARE:.0%} of the ids, in a set large enough for its vocabulary: one in which "
        f"Zipf's law gives the rarest id {MIN_EXAMPLES} occurrences (7.9 M tokens for 8,192 ids, 35 M for 32,000).",
    ),
    (
        "rare",
        f"Worth a look: more rare ids than the size of the set explains, by {RARE_TOLERANCE:.0%} of all ids. "
        f"Bad: more than {MAX_RARE_SHARE:.0%} of the ids, in a set large enough. "
        f"Rare: fewer than {MIN_EXAMPLES} times, in large sets fewer than once in {1 / RARE_SHARE:,.0f} tokens.",
    ),
    ("bytes_per_token", f"Worth a look: a source below {LOW_BYTES_PER_TOKEN:.0%} of the set's bytes per token."),
    (
        "lengths",
        f"Worth a look: {MAX_SHORT_SHARE:.0%} of a source's documents under {SHORT_TOKENS} tokens, or "
        f"{MAX_LONGEST_SHARE:.0%} of its tokens in one document.",
    ),
    (
        "not_text",
        f"Worth a look: HTML, chats, logs, mojibake or another kind of what is not prose in {SHARE_TOLD:.1%} of "
        f"a source's documents and in two at least. Looked at: {LOOKED_AT_DOCUMENTS} documents of {LOOKED_AT_SHARDS} "
        "shards.",
    ),
    ("splits", "Worth a look: documents of files whose names are those of a test or validation split (`test.jsonl`)."),
)
"""Each check's rule in a sentence or two, in the order of the report."""


def is_concentrated(held: int, tokens: int, *, of: int) -> bool:
    """Return whether an id is concentrated, by the rule.

    Args:
        held: its occurrences in the documents with the most of them, which hold more than half of them all.
        tokens: tokens of these documents.
        of: tokens of the training split.
    """
    share = FILLED_FEW_SHARE if held >= FILLED_SHARE * tokens else FEW_SHARE
    return tokens <= _few_tokens(share, of)


def most_occurrences(of: int) -> int:
    """Return the occurrences above which no id is concentrated by the rule: half of them do not fit into few tokens."""
    return int(2 * _few_tokens(FILLED_FEW_SHARE, of))


def _few_tokens(share: float, of: int) -> float:
    return min(MAX_FEW_SHARE * of, max(FEW_TOKENS, share * of))


def rare_below(tokens: int) -> int:
    """Return the limit of the rule for rare ids: an id is rare below this count, in a set of this many tokens."""
    return max(MIN_EXAMPLES, round(tokens * RARE_SHARE))


def expected_id_counts(tokens: int, vocab_size: int) -> Float64s:
    """Return the counts that the rules expect of ids: Zipf's law in this many tokens, float64 `(vocab_size,)`.

    The count of rank r is proportional to 1/r. The counts of a trained BPE fall more slowly, so most sets have fewer
    rare ids than this predicts, except for entries that occur only as parts of longer ones.
    """
    import numpy as np

    shares = 1.0 / np.arange(1, vocab_size + 1)
    return tokens * shares / shares.sum()

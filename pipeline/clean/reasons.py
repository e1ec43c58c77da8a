"""Reasons for which documents are dropped: how each is counted, what is said of such a document, and what to change.

`REASONS` has them all. What drops documents counts them by reason (`pipeline.clean.drops`): the steps of `STEPS` in
`pipeline.clean.steps` before encoding, and `Index` in `pipeline.mix.index` after it. Alarms, `clean-report`, `trace`,
`plan` and `build` say what stands here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.sources.base import MALFORMED, NO_CHAT
from shards.errors import plural
from shards.format.manifest import BLOCK_LIST_REASON
from shards.terminal.display import Table, printable

NULL = "text is null"
INVALID = "text is not valid "
"""The beginning of the reason of text that does not decode; the encoding follows."""
EMPTY = "text is empty"
SHORT = "shorter than min_bytes"
LONG = "longer than max_bytes"
PATTERN = "matches "
"""The beginning of the reason of documents with a pattern; the pattern follows."""
ITEM = "holds an item of "
"""The beginning of the reason of documents with items of an evaluation set; its name follows."""
MANY_TOKENS = "longer than chat.max_tokens"
DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near-duplicate"
NOT_TAKEN = "not taken"
ELSEWHERE = " of another source"
"""The end of the reason of a document that goes because of one of another source."""
SHOWN_REASONS = 3
"""The most reasons of a step that a line or an alarm names."""
SHOWN_DOCUMENTS = 3
"""The most documents of a reason that an alarm shows."""
TEXT_CHARACTERS = 100
"""The text of a document that alarms and `clean-report` print; of a copied item, the text on both sides together."""


class Reason(NamedTuple):
    """A reason for which documents are dropped."""

    name: str
    """How it is counted; the beginning, with a space at its end, if what decided follows."""
    change: str
    """What a person changes so that fewer documents are dropped."""
    code: str = "limits"
    """What it is called in the JSON of `trace --hash`."""
    sentence: str = "{reason}"
    """What `trace` says of a document; in braces, what is known of it."""

    def explain(self, **known: Any) -> dict[str, str]:
        """Return why a document is not in the set, as the JSON of `trace` has it."""
        return {"step": self.code, "text": self.sentence.format(**known)}


MEASURED = "{reason}: {measure} is {value:.6g}, limit {limit:.6g}"
"""A reason with what was measured of a document."""
KEEP = Reason("not ", "`keep`")
"""A predicate that a row does not fulfil, and `: null` if its column is null."""
_LIMIT = Reason("", "`clean`")
"""All other reasons: a preset and its limit, or a filter and what it says."""
_AS_BYTES = "{reason}: it has {bytes:,} bytes, limit "
REASONS = (
    Reason(MALFORMED, "the records"),
    Reason(NULL, "`text`"),
    Reason(
        INVALID,
        "`encoding`",
        sentence="{reason}; above max_malformed = {source.max_malformed}, such records stop the build",
    ),
    Reason(NO_CHAT, "`messages`, or the conversations", "messages"),
    Reason(EMPTY, "`text`"),
    Reason(SHORT, "`min_bytes`", sentence=_AS_BYTES + "{source.min_bytes:,}"),
    Reason(LONG, "`max_bytes`", sentence=_AS_BYTES + "{source.max_bytes:,}"),
    Reason(PATTERN, "`drop_if_matches`"),
    Reason(BLOCK_LIST_REASON, "`drop_hashes`", "block_list", "its hash is in the block list {list}"),
    Reason(
        ITEM,
        "`evaluations`",
        "evaluations",
        "it holds an item of the evaluation set {evaluation!r}: {item} row {item_row}, {share:.0%} of its words in "
        "bytes {start:,} to {stop:,} of the text",
    ),
    Reason(MANY_TOKENS, "`chat.max_tokens`", "max_tokens"),
    Reason(
        DUPLICATE,
        "the order of sources (a document in two sources stays in the first)",
        "duplicate",
        "its text is that of an earlier document{of_source}: {unit} row {row}",
    ),
    Reason(
        NEAR_DUPLICATE,
        "`clean.near_duplicates`",
        "near_duplicate",
        "it is a near-duplicate (Jaccard similarity {jaccard:.4f}) of a kept document in source {source!r}: {unit} row "
        "{row}, hash {hash}",
    ),
    Reason(f"{NOT_TAKEN}: ", "`take`", "take", "{reason} of the source {source!r}, the hashes before {end:016x}"),
    KEEP,
    Reason("content ", "the rows, whose files cannot be fetched"),
    _LIMIT,
)
"""Every reason; of several that fit a name in the counts, the first is meant."""


def find_reason(counted: str) -> Reason:
    """Return the reason of a name in the counts."""
    whole = counted.removesuffix(ELSEWHERE)
    return next(
        reason
        for reason in REASONS
        if whole == reason.name or (reason.name[-1:] in ("", " ") and whole.startswith(reason.name))
    )


def step_of(reason: str) -> str:
    """Return the step of a drop's reason: `gopher` of `gopher: min_words`; a pattern or block list is its own step."""
    if reason.startswith((BLOCK_LIST_REASON, PATTERN, ITEM)):
        return reason
    return reason.removesuffix(ELSEWHERE).partition(": ")[0]


class Dropped(NamedTuple):
    """How many documents are dropped, of those that were looked at."""

    found: int
    decided: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.found / self.decided if self.decided else 0.0

    def describe(self, noun: str = "document", more: str = "") -> str:
        """Return the counts, with more in the parentheses: `3 of 10 documents (30.00%)`."""
        return f"{self.found:,} of {plural(self.decided, noun)} ({self.share:.2%}{more})"

    def enough(self) -> float:
        """Return a limit of four digits that allows this share."""
        return -(-self.found * 10_000 // self.decided) / 10_000  # in whole numbers: rounded up, and never too low

    def refuse(
        self,
        source: str,
        said: str,
        most: float,
        *,
        change: str,
        key: str = "max_dropped",
        place: str = "",
        examples: Iterable[str] = (),
    ) -> Iterator[str]:
        """Yield the alarm, if more is dropped than a recipe allows.

        Args:
            source: the source's name.
            said: what drops how many.
            most: the largest share that the recipe allows.
            change: what a person may change instead of the limit.
            key: the limit's key in the recipe.
            place: where the key is.
            examples: lines that show some of the documents.
        """
        # Of shares: a product of floats may be less than the number that it stands for.
        if self.share <= most:
            return
        shown = [*examples]
        again = "" if key == "max_malformed" else ": then nothing is encoded again"
        allow = f", or set {key} = {self.enough()}{place} to go on without these{again}"
        yield "\n".join(
            [
                f"source {source!r}: {said}, more than {key} = {most} allows{'. Examples:' if shown else ''}",
                *(f"  {line}" for line in shown),
                f"{change}{allow if self.share < 1 else ''}.",
            ]
        )


def show_examples(documents: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the lines of an alarm that show some documents of each reason."""
    for reason, own in documents.items():
        yield f"{printable(reason)}:"
        yield from (f"  {line}" for document in own for line in show_document(document))


def show_document(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that show a dropped document: where it is, what was measured, the beginning of its text.

    Args:
        document: as the JSON of `clean-report` has it.
    """
    where = f"{printable(document['place'])} row {document['row']}"
    if found := document.get("found"):
        item, around = document["item"], TEXT_CHARACTERS // 2
        hit = found["hit"][:TEXT_CHARACTERS]
        after = found["after"][:around] if hit == found["hit"] else ""
        where += f" holds {item['share']:.0%} of {printable(item['item'])} row {item['item_row']}"
        yield f"{where}: {printable(found['before'][-around:])}>>>{printable(hit)}<<<{printable(after)}"
        return
    value = f" ({document['value']:.6g})" if document.get("value") is not None else ""
    text = printable(document["text"][:TEXT_CHARACTERS])
    yield f"{where}{value}{text and ': '}{text}"
    if twin := document.get("twin"):
        text = printable(twin["text"][:TEXT_CHARACTERS])
        yield f"  similar by {document['jaccard']:.3f} to {printable(twin['place'])} row {twin['row']}: {text}"


def describe_drops(dropped: Mapping[str, int], records: int) -> str:
    """Return how many of some records are dropped, and why, the most frequent reason first; or nothing."""
    if not (count := sum(dropped.values())):
        return ""
    listed = _name_largest({f"{reason}:": number for reason, number in dropped.items()}, "{:,}")
    return f"{count:,} of {plural(records, 'record')} {'is' if count == 1 else 'are'} dropped ({listed})"


def describe_change(dropped: Iterable[str]) -> str:
    """Return what to do about these reasons, which drop all documents, without a full stop."""
    keys = [*dict.fromkeys(find_reason(reason).change for reason in dropped)]
    return f"Change {', or '.join(keys)}" if keys else "Give files that hold documents"


def describe_masked(masked: Mapping[str, int]) -> str:
    """Return how much personal data of each kind was masked."""
    return ", ".join(f"{plural(count, 'time')} {kind}" for kind, count in sorted(masked.items()))


def drop_rows(source: str, dropped: Mapping[str, float], records: int = 0) -> Table:
    """Return the table of a source's drops that `build` and `plan` print: a row for each step, with its main reasons.

    Args:
        source: the source's name.
        dropped: documents by reason; without `records`, the shares of all that they are.
        records: how many were read.
    """
    steps: dict[str, dict[str, float]] = {}
    for reason, count in dropped.items():
        step = step_of(reason)
        steps.setdefault(step, {})[reason.removeprefix(f"{step}: ")] = count
    rows: Table = []
    for step, reasons in sorted(steps.items(), key=lambda step: -sum(step[1].values())):
        count = sum(reasons.values())
        several = _name_largest(reasons, "{:,}" if records else "{:.1%}") if reasons.keys() != {step} else ""
        documents = {"documents": count} if records else {}
        share = f"{count / (records or 1):.1%}"
        rows.append({"source": source, "dropped by": step, **documents, "share": share, "most of them": several})
    return rows


def _name_largest(drops: Mapping[str, float], form: str) -> str:
    """Return the reasons of most drops, with how many each drops, and how many other reasons there are."""
    listed = [f"{reason} {form.format(count)}" for reason, count in Counter(drops).most_common(SHOWN_REASONS)]
    left = len(drops) - len(listed)
    return ", ".join([*listed, *([f"{left} more"] if left else [])])

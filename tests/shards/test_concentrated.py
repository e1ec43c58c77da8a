"""Concentrated ids: counts against plain ones, the documents listed, and the block list that is written."""

import dataclasses
import random
import re
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from shards.audit.audit import audit
from shards.audit.concentrated_documents import SPREAD_BINS, find_halves
from shards.audit.rules import LISTED_SHARE, MIN_LISTED, is_concentrated, most_occurrences
from shards.format.reader import open_set
from tests.support.builds import call_here
from tests.support.shard_sets import write_set

pytestmark = pytest.mark.long


BELOW = 100


@pytest.fixture(scope="module")
def flooded(_shared_plan, tmp_path_factory):
    """Return a set of which 24 documents, 4 of them in validation, are full of words that no other document holds."""
    plan = _shared_plan
    documents = {split: [list(shard) for shard in parts] for split, parts in plan.documents.items()}
    changed = dataclasses.replace(plan, documents=documents)
    tokenizer = Tokenizer.from_str(plan.tokenizer)
    rng = random.Random(4)
    for split, shard, number in [("train", 0, 12), ("train", 1, 8), ("val", 0, 4)]:
        documents = changed.documents[split][shard]
        for place in rng.sample(range(len(documents)), number):
            text = " ".join(rng.choice(["qzxj", "vwkq@@", "the", "of", "Zqj"]) for _ in range(150))
            tokens = np.array([*tokenizer.encode(text).ids, plan.eos_id], "<u2")
            old = documents[place]
            documents[place] = dataclasses.replace(old, text=text.encode(), tokens=tokens, hash=b"")
    folder = tmp_path_factory.mktemp("flooded") / "set"
    write_set(folder, changed)
    return folder, changed


@pytest.fixture(scope="module")
def found(flooded):
    """Return the audit of the flooded set."""
    return audit(flooded[0], block_list=True).concentrated


def bin_of(times):
    """Return the quarter of a doubling that a number is in, at most 63: the exact comparison of its fourth power."""
    return min((times**4).bit_length() - 1, 63)


def plain_half(held, lengths):
    """Return the number, occurrences and tokens of the documents with the most occurrences, by quarters of a doubling.

    Args:
        held: occurrences by document.
        lengths: tokens by document.
    """
    for number in range(63, -1, -1):
        half = [document for document, times in held.items() if bin_of(times) >= number]
        if 2 * sum(held[document] for document in half) > sum(held.values()):
            break
    return [len(half), sum(held[document] for document in half), sum(lengths[document] for document in half)]


def plain_search(plan, vocabulary):
    """Return, by plain loops, the concentrated ids with their counts, and what they are in the listed documents.

    Returns:
        ids: occurrences and documents of each concentrated id; and the number and tokens of `plain_half`.
        listed: the hash of each listed document.
    """
    train = [document for shard in plan.documents["train"] for document in shard]
    lengths = {number: len(document.tokens) for number, document in enumerate(train)}
    of = sum(lengths.values())
    by_id = defaultdict(Counter)
    for number, document in enumerate(train):
        for token in document.tokens.tolist():
            by_id[token][number] += 1
    ids, special = {}, vocabulary.special.values()
    for token, held in by_id.items():
        (documents, times, tokens), text = plain_half(held, lengths), vocabulary.entries[token]
        whole = text.strip() and text.decode("utf-8", "replace").encode() == text
        judged = whole and token not in special and BELOW <= held.total() <= most_occurrences(of)
        if judged and is_concentrated(times, tokens, of=of):
            ids[token] = (held.total(), len(held), documents, tokens)
    listed = set()
    for document in (document for parts in plan.documents.values() for shard in parts for document in shard):
        tokens = document.tokens.tolist()
        times = Counter(token for token in tokens if token in ids)
        others = sum(
            any(byte >= 128 or chr(byte).isalpha() for byte in vocabulary.entries[token])
            for token in tokens
            if token not in ids and token not in special
        )
        if times.total() >= MIN_LISTED and times.total() >= LISTED_SHARE * (times.total() + others):
            listed.add(document.hash)
    return ids, listed


def test_ids_and_documents_are_those_of_plain_loops(flooded, found):
    folder, plan = flooded
    ids, listed = plain_search(plan, open_set(folder).vocabulary)
    keys = ("count", "documents", "half_documents", "half_tokens")
    assert {row["id"]: tuple(row[key] for key in keys) for row in found.ids} == ids
    held = [row["listed"] for row in found.ids]
    assert held == sorted(held, reverse=True)
    assert held[0] > held[-1]
    assert {bytes.fromhex(place.hash) for place, _ in found.documents} == listed
    flood = {d.hash for parts in plan.documents.values() for s in parts for d in s if d.text.count(b"qzxj") > 9}
    assert len(flood) == 24
    assert flood == listed


@given(
    st.lists(
        st.dictionaries(st.integers(0, 2), st.integers(1, 4) | st.integers(5, 70_000), max_size=3),
        min_size=1,
        max_size=30,
    )
)
@example([{0: 2}, {0: 1}, {0: 1}])  # exactly half
def test_halves_are_what_their_definition_says(documents):
    spread, held = np.zeros((3, 3, SPREAD_BINS), np.int64), defaultdict(dict)
    lengths = {number: sum(own.values()) + 1 for number, own in enumerate(documents)}
    for number, own in enumerate(documents):
        for token, times in own.items():
            spread[:, token, bin_of(times)] += [1, times, lengths[number]]
            held[token][number] = times
    assert find_halves(spread).tolist() == [plain_half(held[token], lengths) for token in range(3)]


def test_the_command_writes_a_list_with_reasons(flooded, found, tmp_path):
    path = tmp_path / "block.txt"
    audit = ("audit", flooded[0], "--out", tmp_path / "audit", "--write-block-list", path)
    done = call_here(*audit, "--json")
    assert done.returncode in (0, 1)
    told = done.json["block_list"]
    lines = path.read_text("ascii").splitlines()
    assert lines[4::2] == sorted(place.hash for place, _ in found.documents)
    assert (told["hashes"], told["documents"], told["file"]) == (24, 24, str(path))
    assert told["ids"] == found.ids
    reasons = dict(zip(lines[4::2], lines[3::2], strict=True))
    for place, reason in found.documents:
        assert reasons[place.hash] == f"# {reason}"
        assert reason.startswith(f"{place.source}, {place.unit} row {place.row}: {place.tokens:,} tokens, share ")
        assert re.search(r'%: "\S+" \d+ times \([\d.]+% of [\d,]+ in all\)', reason)
    shown = call_here(*audit).stdout
    assert f'drop_hashes = ["{path}"]' in shown
    assert "warning: the block list takes" in shown
    assert f'"{found.ids[0]["text"]}"' in shown

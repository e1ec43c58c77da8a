"""The audit: counts against plain ones, and each fault planted and found."""

import dataclasses
import itertools
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.audit.audit import audit, choose_val_rate
from shards.audit.checks import check_ids
from shards.audit.figures import BINS, Totals, bin_lengths, bin_middles, quantile
from shards.audit.ngrams import NO_NGRAM, hash_ngrams, token_values
from shards.audit.rules import expected_id_counts, rare_below
from shards.format.reader import open_set
from shards.format.vocabulary import Vocabulary
from shards.validation.validate import validate
from tests.support.builds import call_here
from tests.support.shard_sets import write_set


@pytest.fixture(scope="session")
def good_audit(good_set, tmp_path_factory):
    """Return the audit of the whole set; its files are in `out`."""
    return audit(good_set, out=tmp_path_factory.mktemp("audit"))


@pytest.fixture
def small_plan(plan):
    """Return the good plan with a third of its training documents, for faults that do not need more."""
    plan.documents["train"] = [documents[: len(documents) // 3] for documents in plan.documents["train"]]
    return plan


def change(plan, split, shard, number, tokens):
    """Give a document other tokens (EOS included)."""
    documents = plan.documents[split][shard]
    digest = bytes([shard, *number.to_bytes(4, "big"), split == "val"]).ljust(16, b"\x01")
    documents[number] = dataclasses.replace(documents[number], tokens=np.array(tokens, "<u2"), hash=digest)


def write(plan, tmp_path):
    """Write a changed set and audit it."""
    write_set(tmp_path / "set", plan)
    return audit(tmp_path / "set")


def split_documents(plan, split):
    """Return a split's documents, in order."""
    return [document for shard in plan.documents[split] for document in shard]


def test_counts_are_what_plain_counting_gives(good_set, good_audit, plan):
    table = pq.read_table(good_audit.out / "tokens.parquet").to_pydict()
    train = split_documents(plan, "train")
    assert table["id"] == list(range(300))
    for name in ("prose", "code"):
        tokens = np.concatenate([document.tokens for document in train if document.source == name])
        assert table[f"count_{name}"] == np.bincount(tokens, minlength=300).tolist()
    assert table["count"] == [a + b for a, b in zip(table["count_prose"], table["count_code"], strict=True)]
    holding = np.zeros(300, int)
    for document in train:
        holding[np.unique(document.tokens)] += 1
    assert table["documents"] == holding.tolist()
    val = np.concatenate([document.tokens for document in split_documents(plan, "val")])
    assert table["val_count"] == np.bincount(val, minlength=300).tolist()
    assert (table["bytes"][270], table["special"]) == (table["text"][270].encode(), [False] * 298 + [True] * 2)
    assert good_audit.data["tokens"] == sum(shard.num_tokens for shard in open_set(good_set).shards)


def test_examples_hold_what_they_show(good_audit, plan):
    shards = {
        f"{split}-{k:05d}": documents for split, parts in plan.documents.items() for k, documents in enumerate(parts)
    }
    rows = good_audit.check("concentrated").rows
    ranked = [row["bits"] for row in rows]
    assert ranked == sorted(ranked, reverse=True)
    assert ranked[0] > ranked[-1]
    assert len(rows) == 50
    for row in rows:
        (shown,) = row["examples"]
        document = shards[shown["shard"]][shown["document"]]
        assert document.tokens[shown["position"]] == row["id"]
        assert (shown["hash"], shown["source"], shown["row"]) == (document.hash.hex(), document.source, document.row)


def test_concentration_is_what_its_definition_says(small_plan, tmp_path):
    for shard, documents in enumerate(small_plan.documents["train"]):
        for number, document in enumerate(documents[20:], 20):
            keep = (document.tokens < 280) | (document.tokens >= small_plan.eos_id)
            change(small_plan, "train", shard, number, np.where(keep, document.tokens, 32))
    table = pq.read_table(write(small_plan, tmp_path).out / "tokens.parquet").to_pydict()
    train = split_documents(small_plan, "train")
    total = sum(len(document.tokens) for document in train)
    frequent = [token for token in range(256, 298) if table["count"][token]]
    assert len(frequent) > 20
    assert max(table["document_bits"]) > 2
    for token in frequent:
        expected, source_bits, count = 0.0, 0.0, table["count"][token]
        for name in ("prose", "code"):
            lengths = np.array([len(document.tokens) for document in train if document.source == name])
            here = table[f"count_{name}"][token]
            expected += (1 - np.exp(-here * lengths / lengths.sum())).sum()
            source_bits += here / count * np.log2(here / count / (lengths.sum() / total)) if here else 0
        bits = max(0.0, np.log2(expected / table["documents"][token]))
        assert table["document_bits"][token] == pytest.approx(bits, abs=0.02)
        assert table["source_bits"][token] == pytest.approx(source_bits, abs=1e-9)


def test_files_named_like_a_test_split_are_told(small_plan, tmp_path):
    names = ("a/train.txt", "a/test.txt", "testimony.txt", "b/valid.csv")
    for documents in small_plan.documents["train"]:
        units = (f"{name}@1#file" for name in itertools.cycle(names))
        documents[:] = [dataclasses.replace(one, unit=unit) for one, unit in zip(documents, units, strict=False)]
    check = write(small_plan, tmp_path).check("splits")
    assert check.verdict == "look"
    assert check.summary.endswith("named like a test or validation split, such as a/test.txt of code")
    found = {(row["source"], row["file"]) for row in check.rows}
    assert found <= {(source, name) for source in ("code", "prose") for name in (names[1], names[3])}
    assert {name for _, name in found} == {names[1], names[3]}


def test_a_set_without_faults_and_its_lengths_by_source(good_audit, plan):
    everything = split_documents(plan, "train") + split_documents(plan, "val")
    for row in good_audit.check("lengths").rows:
        lengths = np.array([len(d.tokens) for d in everything if d.source == row["source"]])
        assert (row["documents"], row["shortest"]) == (len(lengths), lengths.min())
        assert (row["longest"], row["mean"]) == (lengths.max(), round(lengths.mean(), 1))
        assert row["p50"] == pytest.approx(np.median(lengths), rel=0.03)
        assert sum(row["histogram"].values()) == len(lengths)
    for name in ("special_ids", "lengths", "rare", "splits"):
        check = good_audit.check(name)
        assert check.verdict == "ok", check.summary
    assert good_audit.check("validation_overlap").rows == []
    assert good_audit.verdict == "look"  # some merges are only ever parts of longer ones


def test_audit_lies_beside_the_set_leaves_it_whole_and_workers_change_no_byte(good_set, good_audit, tmp_path):
    folder = shutil.copytree(good_set, tmp_path / "set")
    report = audit(folder, workers=2)
    assert report.out == tmp_path / "set.audit"
    written = {file.name: file.read_bytes() for file in report.out.iterdir()}
    assert written == {name: (good_audit.out / name).read_bytes() for name in ("audit.json", "tokens.parquet")}
    assert validate(folder, level="full").ok


def test_special_id_inside_a_document(small_plan, tmp_path):
    planted = {("train", 5): small_plan.eos_id + 1, ("train", 6): small_plan.eos_id, ("val", 5): small_plan.eos_id + 1}
    for (split, number), token in planted.items():
        tokens = small_plan.documents[split][0][number].tokens.copy()
        tokens[3] = token
        change(small_plan, split, 0, number, tokens)
    report = write(small_plan, tmp_path)
    check = report.check("special_ids")
    assert (check.verdict, report.verdict) == ("bad", "bad")
    found = {(at["shard"], at["document"]): row["id"] for row in check.rows for at in row["examples"]}
    assert found == {(f"{split}-00000", number): token for (split, number), token in planted.items()}


def test_only_the_beginning_of_a_document_has_a_prefix(small_plan, tokenizer, tmp_path, monkeypatch):
    change(small_plan, "train", 0, 0, tokenizer.encode(" ").ids * 70 + [small_plan.eos_id + 1, small_plan.eos_id])
    write_set(tmp_path / "set", small_plan)
    shard_set = open_set(tmp_path / "set")
    vars(shard_set)["vocabulary"] = dataclasses.replace(shard_set.vocabulary, prefix=b" ")
    monkeypatch.setattr("shards.audit.audit.require_whole", lambda _: shard_set)
    (row,) = audit(tmp_path / "set").check("special_ids").rows
    assert row["examples"][0]["before"] == " " * 64


@pytest.mark.parametrize(
    ("tokens", "vocab_size", "planted", "never_seen", "rare"),
    [
        (10**9, 32_000, {}, "ok", "ok"),
        (10**9, 32_000, {"unseen": 1_700}, "bad", "ok"),  # 5.3 % of the embedding would never be trained
        (10**9, 32_000, {"rare": 16_500}, "ok", "bad"),
        (30 * 10**9, 32_000, {"rare": 640}, "ok", "look"),
        (200_000, 8_192, {}, "ok", "ok"),  # 97 % rare, which is what so few tokens must give
        (7_200_000, 8_192, {"unseen": 92}, "ok", "ok"),  # small for its vocabulary
        (8_200_000, 8_192, {"unseen": 92}, "look", "ok"),
    ],
)
def test_verdicts_on_ids_know_the_size_of_the_set(tokens, vocab_size, planted, never_seen, rare):
    """Ids occur by Zipf's law, but for the last ones: never, or once."""
    totals = Totals(["web"], Vocabulary([b"ab"] * vocab_size, {}))
    counts = np.maximum(expected_id_counts(tokens, vocab_size), 1).astype(np.int64)
    ones = vocab_size - planted.get("rare", 0)
    counts[ones:] = 1
    counts[ones - planted.get("unseen", 0) : ones] = 0
    totals.train.counts[0] = counts
    bits = np.zeros(vocab_size)
    _, unseen, few = check_ids(totals, (bits, bits), below=rare_below(totals.train.tokens))
    assert (unseen.verdict, few.verdict) == (never_seen, rare)
    assert ("a set this small" in unseen.summary) == (tokens / vocab_size < 1000)


def test_validation_seen_in_training(small_plan, tmp_path):
    leaked, copy = (
        next(n for n, document in enumerate(documents) if len(document.tokens) >= 300)
        for documents in (small_plan.documents["val"][0], small_plan.documents["train"][1])
    )
    tokens = small_plan.documents["val"][0][leaked].tokens.copy()
    tokens[7] ^= 1
    tokens = np.concatenate([small_plan.documents["train"][1][copy].tokens[:100], tokens])
    change(small_plan, "train", 1, copy, tokens)
    report = write(small_plan, tmp_path)
    check = report.check("validation_overlap")
    (row,) = check.rows
    assert [(s["shard"], s["document"]) for s in row["examples"]] == [("val-00000", leaked)]
    assert row["seen"] >= 0.8
    assert check.verdict == "look", "near-duplicates of a few documents flatter the loss; they do not spoil the model"
    assert check.summary.startswith("nearly whole in training (80%")
    assert "in other documents): 1 of " in check.summary


def test_the_rate_bounds_the_sample_of_validation(good_set):
    shard_set = open_set(good_set)
    assert choose_val_rate(shard_set) == 1
    val = shard_set.manifest.splits["val"].model_copy(update={"tokens": 10**8})
    vars(shard_set)["manifest"] = shard_set.manifest.model_copy(update={"splits": {"val": val}})
    assert 10**8 / choose_val_rate(shard_set) <= 1 << 20


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    width=st.sampled_from([2, 4, 16]),
    seed=st.integers(0, 99),
)
def test_equal_windows_have_equal_hashes(lengths, width, seed):
    tokens = np.random.default_rng(seed).integers(0, 3, sum(lengths)).astype(np.uint16)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    hashes = hash_ngrams(tokens, starts, ends, width=width, values=token_values(3))
    windows: dict[int, set[bytes]] = {}
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        for place in range(start, end):
            inside = place + width <= end - 1  # the last token is EOS
            assert (hashes[place] != NO_NGRAM) == inside
            if inside:
                windows.setdefault(int(hashes[place]), set()).add(tokens[place : place + width].tobytes())
    assert all(len(same) == 1 for same in windows.values())
    assert len({window for same in windows.values() for window in same}) == len(windows)


@given(length=st.integers(1, 2**32 - 1))
def test_length_bins(length):
    (place,) = bin_lengths(np.array([length]))
    assert 0 <= place < BINS
    assert bin_middles()[place] == pytest.approx(length, rel=0.012, abs=0.01)
    counts = np.zeros(BINS, np.int64)
    counts[place] = 5
    assert quantile(counts, 0.5, shortest=0, longest=2**32) == pytest.approx(length, rel=0.015, abs=2)


def test_command(small_plan, tokenizer, good_set, tmp_path):
    arguments = ["audit", good_set, "--out", tmp_path / "out"]
    shown = call_here(*arguments, expect=0).stdout
    assert "validation_overlap" in shown
    assert ("--write-block-list FILE lists" in shown) == bool(re.search("concentrated +worth a look", shown))
    report = call_here(*arguments, "--json", expect=0).json
    assert report["rare_below"] == 100
    assert [check["name"] for check in report["checks"]][:2] == ["special_ids", "validation_overlap"]

    document = small_plan.documents["train"][0][0]
    change(small_plan, "train", 0, 0, [small_plan.eos_id + 1, *tokenizer.encode("\x1b[2J").ids, *document.tokens])
    write_set(tmp_path / "set", small_plan)
    shown = call_here("audit", tmp_path / "set", expect=1).stdout
    assert ">>><|pad|><<<\\x1b[2J" in shown
    assert "bad; do not train on this set" in shown
    assert "\x1b" not in shown

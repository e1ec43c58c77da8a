"""Concentrated ids and words: counts against plain ones, the documents listed, and the block list that is written."""

import dataclasses
import json
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from shards.audit import word_finder
from shards.audit.audit import audit
from shards.audit.repositories import name_repositories
from shards.audit.rules import LISTED_SHARE, MIN_LISTED, is_concentrated, most_occurrences
from shards.audit.spread import Spread, count_spread_pairs
from shards.audit.word_finder import WORD_SHARE, Candidates, WordFinder, Words
from shards.errors import InputError
from shards.format.document_blocks import iter_blocks
from shards.format.reader import open_set
from shards.trace.block_list import check_block_list_path
from tests.support.shard_sets import write_set
from tokenmill.__main__ import main

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
    return audit(flooded[0], rare=BELOW, listed_share=LISTED_SHARE).concentrated


def plain_words(tokens, vocabulary):
    """Return the words of several tokens of a document as (start, stop): a plain loop over its tokens."""

    def kind(token):
        text = vocabulary.entries[token].lstrip()
        if token in vocabulary.special.values() or not text or any(byte <= 32 for byte in text):
            return "other"
        letters = {byte >= 128 or chr(byte).isalnum() for byte in text}
        return "other" if len(letters) == 2 else "letters" if letters == {True} else "punctuation"

    found, start = [], 0
    for at in range(1, len(tokens) + 1):
        same = at < len(tokens) and kind(tokens[at]) == kind(tokens[at - 1])
        if same and not vocabulary.entries[tokens[at]][:1].isspace():
            continue
        if at - start > 1 and kind(tokens[start]) != "other":
            found.append((start, at))
        start = at
    return found


def plain_half(held, lengths):
    """Return count, documents, and number, occurrences and tokens of the documents with the most occurrences.

    Args:
        held: occurrences by document.
        lengths: tokens by document.
    """
    total = sum(held.values())
    for least in sorted(set(held.values()), reverse=True):
        half = [document for document, times in held.items() if times >= least]
        if 2 * sum(held[document] for document in half) > total:
            break
    occurrences = sum(held[document] for document in half)
    return total, len(held), len(half), occurrences, sum(lengths[document] for document in half)


def plain_search(plan, vocabulary, share):
    """Return, by plain loops, the concentrated terms with their counts, and what they are in the listed documents.

    Returns:
        terms: `plain_half` of each concentrated term.
        listed: the occurrences of each term, by the hash of each listed document.
    """
    train = [document for shard in plan.documents["train"] for document in shard]
    lengths = {number: len(document.tokens) for number, document in enumerate(train)}
    of = sum(lengths.values())
    by_term, filled = defaultdict(Counter), Counter()
    for number, document in enumerate(train):
        tokens = document.tokens.tolist()
        for token in tokens:
            by_term[(token,)][number] += 1
        words = Counter(tuple(tokens[start:stop]) for start, stop in plain_words(tokens, vocabulary))
        for word, times in words.items():
            by_term[word][number] = times
            if times > 1 and times * len(word) >= WORD_SHARE * len(tokens):
                filled[word] += times
    terms = {}
    for term, held in by_term.items():
        half = plain_half(held, lengths)
        if len(term) == 1:
            text = vocabulary.entries[term[0]]
            whole = text.strip() and text.decode("utf-8", "replace").encode() == text
            judged = whole and term[0] not in vocabulary.special.values() and half[0] <= most_occurrences(of)
        else:
            judged = 2 * filled[term] >= BELOW
        if judged and half[0] >= BELOW and is_concentrated(half[3], half[4], of=of):
            terms[term] = half
    listed = {}
    for document in (document for parts in plan.documents.values() for shard in parts for document in shard):
        tokens = document.tokens.tolist()
        units = {start: tuple(tokens[start:stop]) for start, stop in plain_words(tokens, vocabulary)}
        times, others, at = Counter(), 0, 0
        while at < len(tokens):
            unit = units[at] if units.get(at) in terms else (tokens[at],)
            if unit in terms:
                times[unit] += 1
            elif tokens[at] not in vocabulary.special.values():
                others += any(byte >= 128 or chr(byte).isalpha() for byte in vocabulary.entries[tokens[at]])
            at += len(unit)
        if times.total() >= MIN_LISTED and times.total() >= share * (times.total() + others):
            listed[document.hash] = times
    return terms, listed


@pytest.fixture(scope="module")
def plain(flooded):
    """Return what plain loops find."""
    return plain_search(flooded[1], open_set(flooded[0]).vocabulary, LISTED_SHARE)


def test_terms_and_documents_are_those_of_plain_loops(flooded, found, plain):
    _, plan = flooded
    terms, listed = plain
    halves = {
        term.ids: (
            term.count,
            term.documents,
            term.half_documents,
            term.half_count,
            term.half_tokens,
        )
        for term in found.terms
    }
    assert halves == terms
    held = [term.listed for term in found.terms]
    assert held == sorted(held, reverse=True)
    assert held[0] > held[-1]
    assert {bytes.fromhex(document.place.hash) for document in found.documents} == listed.keys()
    texts = {term.text.strip() for term in found.terms}
    assert {"qzxj", "vwkq", "Zqj", "@@"} <= texts
    assert any(len(ids) > 1 for ids in halves)
    flood = {d.hash for parts in plan.documents.values() for s in parts for d in s if d.text.count(b"qzxj") > 9}
    assert len(flood) == 24
    assert flood == listed.keys()


def test_listed_documents_say_where_they_are_from_and_why(flooded, found, plain):
    folder, plan = flooded
    documents = {d.hash: d for parts in plan.documents.values() for s in parts for d in s}
    tokens = Counter()
    for document in found.documents:
        own, place = documents[bytes.fromhex(document.place.hash)], document.place
        assert (place.source, place.unit, place.tokens) == (own.source, own.unit, len(own.tokens))
        tokens[own.source] += len(own.tokens)
        held = plain[1][own.hash]
        assert [times for _, times in document.reasons] == [times for _, times in held.most_common(3)]
        assert all(held[found.terms[number].ids] == times for number, times in document.reasons)
    listed = sum(plain[1].values(), Counter())
    assert {term.ids: term.listed for term in found.terms if term.listed} == listed
    sources = {row["source"]: row for row in found.sources()}
    entries = {source.name: 0 for source in open_set(folder).manifest.sources}
    for parts in plan.documents.values():
        for document in (document for shard in parts for document in shard):
            entries[document.source] += len(document.tokens)
    for name, row in sources.items():
        assert (row["tokens"], row["share"]) == (tokens[name], tokens[name] / entries[name])
    large = {name for name, row in sources.items() if row["share"] > 0.01}
    assert large
    assert {warning.split(" tokens of ")[1].split(",")[0] for warning in found.warnings()} == large
    assert sum(row["documents"] for row in found.places()) == 24


def test_workers_do_not_change_the_list(flooded, found, tmp_path):
    two = audit(flooded[0], out=tmp_path, rare=BELOW, listed_share=LISTED_SHARE, workers=2).concentrated
    assert two == found


def test_a_larger_share_lists_fewer(flooded, tmp_path):
    assert not audit(flooded[0], out=tmp_path, rare=BELOW, listed_share=1.0).concentrated.documents


def test_a_set_without_a_flood_has_no_list_and_the_audit_files_stay(good_set, flooded, tmp_path):
    plain = audit(good_set, out=tmp_path / "plain")
    listed = audit(good_set, out=tmp_path / "listed", listed_share=LISTED_SHARE)
    assert plain.concentrated is None
    for name in ("audit.json", "tokens.parquet"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "listed" / name).read_bytes()
    assert len(listed.concentrated.documents) <= 2


def test_folders_of_single_files_count_together(found):
    units = [
        "repo/a.py@1#file",
        "repo/b/c.py@2#file",
        "top.py@3#file",
        "data/x.parquet@4#rg0-2",
        "data/x.parquet@4#rg2-4",
    ]
    first = found.documents[0]
    listed = [dataclasses.replace(first.place, source="s", unit=unit) for unit in units]
    documents = [dataclasses.replace(first, place=place) for place in listed]
    places = dataclasses.replace(found, documents=documents).places()
    assert places == [
        {"source": "s", "place": "data/x.parquet", "documents": 2},
        {"source": "s", "place": "repo/", "documents": 2},
        {"source": "s", "place": "top.py", "documents": 1},
    ]


@settings(deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from([0, 1, 2, 65_536, 80_000]), st.integers(1, 4) | st.integers(5, 60), max_size=5),
        min_size=1,
        max_size=30,
    )
)
def test_halves_are_what_their_definition_says(documents):
    spread, lengths, held = Spread(), {}, defaultdict(dict)
    for number in range(0, len(documents), 4):
        block = documents[number : number + 4]
        rows = [row for row, terms in enumerate(block) for times in terms.values() for _ in range(times)]
        terms = [term for own in block for term, times in own.items() for _ in range(times)]
        sizes = np.array([sum(own.values()) + 1 for own in block])
        pairs = count_spread_pairs(np.array(rows, np.int64), np.array(terms, np.int64), 80_001)
        assert dict(zip(zip(pairs.rows, pairs.terms, strict=True), pairs.counts, strict=True)) == {
            (row, term): times for row, own in enumerate(block) for term, times in own.items()
        }
        part = Spread()
        part.add(pairs, sizes)
        spread.merge(part.rows())
        for row, own in enumerate(block):
            lengths[number + row] = int(sizes[row])
            for term, times in own.items():
                held[term][number + row] = times
    expected = [[term, *plain_half(held[term], lengths)] for term in sorted(held)]
    assert spread.halves().tolist() == expected


def test_words_are_those_of_a_plain_loop_and_equal_ones_have_equal_hashes(good_set):
    shard_set = open_set(good_set)
    finder = WordFinder(shard_set.vocabulary)
    hashes = {}
    for block in iter_blocks(shard_set, 0):
        words = finder.find(block)
        expected = []
        for row, (start, end) in enumerate(zip(block.starts.tolist(), block.ends.tolist(), strict=True)):
            tokens = block.tokens[start:end].tolist()
            expected += [
                (row, start + a, b - a, tuple(tokens[a:b])) for a, b in plain_words(tokens, shard_set.vocabulary)
            ]
        assert words.starts.tolist() == [start for _, start, _, _ in expected]
        assert words.widths.tolist() == [width for _, _, width, _ in expected]
        assert words.rows.tolist() == [row for row, _, _, _ in expected]
        for value, (_, _, _, tokens) in zip(words.hashes.tolist(), expected, strict=True):
            assert hashes.setdefault(value, tokens) == tokens
    assert len(hashes) == len(set(hashes.values())) > 400


def test_candidates_are_too_low_by_what_is_lost_at_most(monkeypatch):
    monkeypatch.setattr(word_finder, "MAX_CANDIDATES", 20)
    rng = random.Random(1)
    total, true = Candidates(), Counter()
    for shard in range(6):
        candidates = Candidates()
        for block in range(5):
            drawn = sorted((rng.randrange(3), min(99, int(rng.expovariate(0.06)))) for _ in range(200))
            rows, values = np.array([row for row, _ in drawn]), np.array([value for _, value in drawn], np.uint64)
            words = Words(np.arange(200) * 2, np.full(200, 2), rows, values)
            candidates.add(words, np.full(3, 400), shard=shard, start=block * 400)
            for (_, value), times in Counter(drawn).items():
                true[value] += times if times * 2 >= WORD_SHARE * 400 and times > 1 else 0
        total.merge(candidates)
    rows = total.rows()
    assert len(rows) <= 20
    assert total.lost > 0
    weights = {row["hash"]: row["weight"] for row in rows}
    for value, times in true.items():
        assert 0 <= times - weights.get(value, 0) <= total.lost
    chosen = set(total.choose(2 * total.lost + 2)["hash"].tolist())
    assert {value for value, times in true.items() if times > 2 * total.lost} <= chosen


def run(*arguments):
    """Run `tokenmill audit` in this process; return its status."""
    return main(["audit", *map(str, arguments), "--workers", "1", "--rare", str(BELOW)])


def test_repositories_that_cannot_be_read(flooded, found, capsys):
    with pytest.raises(ValueError, match="--repository-column owner: no listed document has one: "):
        name_repositories(open_set(flooded[0]), found, "owner")
    assert run(flooded[0], "--repository-column", "owner") == 2
    assert "--repository-column needs --write-block-list FILE" in capsys.readouterr().err


def test_the_command_writes_a_list_with_reasons(flooded, found, tmp_path, capsys):
    path = tmp_path / "block.txt"
    assert run(flooded[0], "--out", tmp_path / "audit", "--write-block-list", path, "--json") in (0, 1)
    told = json.loads(capsys.readouterr().out)["block_list"]
    lines = path.read_text("ascii").splitlines()
    assert lines[4::2] == sorted(document.place.hash for document in found.documents)
    assert (told["hashes"], told["documents"], told["file"]) == (24, 24, str(path))
    assert told["terms"] == [json.loads(json.dumps(dataclasses.asdict(term))) for term in found.terms]
    reasons = dict(zip(lines[4::2], lines[3::2], strict=True))
    for document in found.documents:
        term, times = document.reasons[0]
        named = found.terms[term]
        share = f"{times / named.count:.2%} of {named.count:,} in all"
        place = document.place
        assert reasons[place.hash].startswith(f"# {place.source}, {place.unit}: {place.tokens:,} tokens")
        assert f'"{named.text}" {times:,} times ({share})' in reasons[place.hash]
    run(flooded[0], "--out", tmp_path / "audit", "--write-block-list", path)
    shown = capsys.readouterr().out
    assert f'drop_hashes = ["{path}"]' in shown
    assert "warning: the block list takes" in shown
    assert f'"{found.terms[0].text}"' in shown


def test_no_other_file_is_overwritten(flooded, tmp_path, capsys):
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes\n")
    assert run(flooded[0], "--out", tmp_path / "audit", "--write-block-list", notes) == 2
    assert "is not a block list" in capsys.readouterr().err
    assert notes.read_text() == "my notes\n"
    assert not (tmp_path / "audit").exists(), "refused before anything is read"
    notes.write_text("")
    check_block_list_path(notes, None)
    notes.write_text("0123456789abcdef0123456789abcdef\n")
    with pytest.raises(InputError, match="is not a block list"):
        check_block_list_path(notes, None)
    assert run(flooded[0], "--out", tmp_path / "audit", "--listed-share", "0.3") == 2
    assert "--listed-share needs --write-block-list" in capsys.readouterr().err

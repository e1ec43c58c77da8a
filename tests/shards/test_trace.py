"""Trace: strings however they are cut, patterns, ids and places, checked against a plain search of the whole set."""

import dataclasses
import itertools
import json
import random
import re
import sys
import tracemalloc

import numpy as np
import pytest

from shards.format.reader import open_set
from shards.trace import search
from shards.trace.block_list import write_block_list
from shards.trace.locate import cut_excerpt, find_holders
from shards.trace.search import Query
from shards.trace.trace import trace
from tests.support.builds import call_here
from tests.support.shard_sets import write_set

ALL = sys.maxsize


def all_documents(plan):
    """Return (shard name, number, document) of every document, in the set's order."""
    for split, shards in plan.documents.items():
        for index, documents in enumerate(shards):
            for number, document in enumerate(documents):
                yield f"{split}-{index:05d}", number, document


def needles(plan):
    """Return strings that occur, cut anywhere, and some that do not."""
    rng = random.Random(4)
    documents = [document.text for _, _, document in all_documents(plan)]
    found = [b"\xc3", "é".encode(), "文 🙂 dé".encode(), b"PersonX", b"the shard holds no", b" ", b"<|endoftext|>"]
    for length in (1, 2, 5, 13, 30, 47, 48, 49, 60, 200):
        text = rng.choice([text for text in documents if len(text) > length])
        start = rng.randrange(len(text) - length)
        found.append(text[start : start + length])
    found.append(found[-1][:60] + b"another end")  # begins as one that occurs, for longer than the filter looks
    return found


PATTERNS = [r"\bcafé\b", "[中文]{2}", "(?i)THE  ?shard ends", "hash.*order$", "nothing here", "é+"]


def find_spans(query, text):
    """Return the bytes [start, stop) of every hit in a document's text, as Python itself finds them."""
    if query.kind == "text":
        return [match.span() for match in re.finditer(re.escape(query.text), text)]
    found = [match.span() for match in re.finditer(query.value, text.decode())]
    return [tuple(len(text.decode()[:place].encode()) for place in span) for span in found]


def test_text_is_found_however_it_is_cut_and_a_pattern_as_re_finds_it(good_set, plan):
    everything, sizes = list(all_documents(plan)), open_set(good_set).vocabulary.entry_lengths()
    queries = [Query("text", needle.decode("utf-8", "surrogateescape")) for needle in needles(plan)]
    for query in [*queries, *(Query("regex", pattern) for pattern in PATTERNS)]:
        holding = [(*entry, spans) for entry in everything if (spans := find_spans(query, entry[2].text))]
        found = trace(good_set, query, limit=ALL)
        assert [(hit.place.shard, hit.place.document) for hit in found.shown] == [entry[:2] for entry in holding]
        assert [bytes(row) for row in found.hashes] == [document.hash for _, _, document, _ in holding]
        for hit, (_, _, document, spans) in zip(found.shown, holding, strict=True):
            (start, stop), *_ = spans
            assert (hit.hits, hit.byte) == (len(spans), start)
            assert hit.position == np.searchsorted(np.cumsum(sizes[document.tokens]), start, "right")
            parts = (hit.excerpt.before, hit.excerpt.hit, hit.excerpt.after)
            before, shown, after = (part.encode("utf-8", "surrogateescape") for part in parts)
            assert document.text[start : min(stop, start + 2 * 120)].startswith(shown)
            assert len(shown) >= min(stop - start, 2 * 120 - 3)
            assert document.text[:start].endswith(before)
            assert document.text[stop:].startswith(after)
            place = (hit.place.source, hit.place.unit, hit.place.row, hit.place.tokens)
            assert place == (document.source, document.unit, document.row, len(document.tokens))


@pytest.mark.parametrize("around", range(2, 12))
def test_excerpt_is_cut_between_characters(around):
    text = "naïve café 中文 🙂 déjà-vu 🙂中é"
    places = [len(text[:number].encode()) for number in range(len(text) + 1)]
    for start, end in itertools.combinations(places, 2):
        cut = cut_excerpt(text.encode(), start, end, around=around)
        shown = (cut.before + cut.hit + cut.after).encode("utf-8", "strict")  # no half of a character is a surrogate
        assert shown in text.encode()


def test_a_pattern_that_matches_everywhere_takes_memory_for_one_match():
    tracemalloc.start()
    assert search._match(re.compile("a"), b"a" * 300_000) == (300_000, 0, 1)
    assert tracemalloc.get_traced_memory()[1] < 3_000_000
    tracemalloc.stop()


def test_token_is_found_wherever_it_is(good_set, plan):
    table = open_set(good_set).vocabulary.entries
    everything = list(all_documents(plan))
    for token in (32, 270, 297, plan.eos_id, plan.eos_id + 1):
        found = trace(good_set, Query("token", str(token)), limit=ALL)
        holding = [
            (name, number, document) for name, number, document in everything if (document.tokens == token).any()
        ]
        assert [(hit.place.shard, hit.place.document, hit.hits, hit.position) for hit in found.shown] == [
            (name, number, int((document.tokens == token).sum()), int((document.tokens == token).argmax()))
            for name, number, document in holding
        ]
        assert all(hit.excerpt.hit.encode("utf-8", "surrogateescape") == table[token] for hit in found.shown)
        assert not any("<|endoftext|>" in hit.excerpt.before + hit.excerpt.after for hit in found.shown)
        assert found.hits == sum(hit.hits for hit in found.shown) == sum(c["hits"] for c in found.sources.values())


def test_neither_workers_nor_the_limit_change_what_is_counted(good_set):
    query = Query("text", "naïve café")
    whole = trace(good_set, query, limit=ALL)
    for workers, limit in ((2, ALL), (1, 3), (2, 3)):
        other = trace(good_set, query, limit=limit, workers=workers)
        assert other.shown == whole.shown[:limit]
        assert (other.documents, other.hits, other.sources) == (whole.documents, whole.hits, whole.sources)
        np.testing.assert_array_equal(other.hashes, whole.hashes)
    assert whole.documents > 3


def test_block_list_names_each_document_once(good_set, plan, tmp_path):
    plan.epochs["prose"] = 2
    twice = next(document for document in plan.documents["train"][0] if b" the shard" in document.text)
    plan.documents["train"][1].append(twice)
    folder = tmp_path / f"set\n{'0' * 32}"  # its name is the set's, and no hash
    write_set(folder, plan)
    found = trace(folder, Query("text", "the shard\n"[:9]), limit=0)
    file = tmp_path / "block.txt"
    assert write_block_list(file, found.hashes, open_set(folder), asked=found.asked) == found.documents - 1
    lines = file.read_text().splitlines()
    listed = [line for line in lines if not line.startswith("#")]
    assert listed == sorted({d.hash.hex() for _, _, d in all_documents(plan) if b"the shard" in d.text})
    assert lines[2] == "# found by --text the shard"
    with pytest.raises(ValueError, match="own folder"):
        write_block_list(folder / "block.txt", found.hashes, open_set(folder), asked="")


def test_commands_print_where_it_is_and_no_document_controls_the_terminal(plan, tokenizer, tmp_path):
    text = "before \x1b]0;owned\x07 the needle\u202e\nb\x9b31mc\u2028\x7f\r\n\tend [bold]"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    first = plan.documents["val"][0][7]
    plan.documents["val"][0][7] = dataclasses.replace(
        first, tokens=np.array([*ids, plan.eos_id], "<u2"), text=text.encode(), hash=first.hash
    )
    write_set(tmp_path / "set", plan)
    arguments = ["trace", tmp_path / "set", "--text", "needle", "--out", tmp_path / "b.txt"]
    shown = call_here(*arguments, expect=0).stdout
    assert f"source {first.source}, unit {first.unit}, row {first.row}, hash {first.hash.hex()}" in shown
    assert "before \\x1b]0;owned\\x07 the >>>needle<<<\\u202e\\nb" in shown
    assert "1 document, 1 hit" in shown
    assert first.hash.hex() in (tmp_path / "b.txt").read_text()
    holder = call_here("trace", tmp_path / "set", "--shard", "val-00000", "--offset", "0", expect=0)
    assert plan.documents["val"][0][0].hash.hex() in holder.stdout
    inspect = ["inspect", tmp_path / "set", "--shard", "val-00000", "--document", "7"]
    told = "before \\x1b]0;owned\\x07 the needle\\u202e\nb\\x9b31mc\\u2028\\x7f\\r\n\tend [bold]\n"
    assert call_here(*inspect, expect=0).stdout.split("\n", 1)[1] == told
    assert call_here(*inspect, "--json", expect=0).json["text"] == text
    report = call_here(*arguments, "--json", expect=0).json
    assert (report["shown"][0]["before"], report["documents"], report["hashes"]) == (text[: text.index("needle")], 1, 1)


def test_bytes_that_are_not_text_are_spelt_out(good_set):
    """A part of a character is shown as its bytes, in words and in valid JSON."""
    for extra in ([], ["--json"]):  # the second byte of U+4E2D
        shown = call_here("trace", good_set, "--text", "\udcb8", "--limit", "3", *extra, expect=0).stdout
        assert "\\udc" not in shown
        assert "\\xb8" in shown
        assert "\\xe4" in shown, "the text around it"
    found = json.loads(shown)
    assert found["query"]["value"] == found["shown"][0]["hit"] == "\\xb8"


def test_holders_of_a_range_are_the_documents_it_touches(good_set, plan):
    shard = open_set(good_set).shard("train-00000")
    documents = plan.documents["train"][0]
    bounds = np.cumsum([0] + [len(document.tokens) for document in documents]).tolist()
    ranges = [(bounds[3], bounds[4]), (bounds[3], bounds[3] + 1), (bounds[4] - 1, bounds[4]), (0, bounds[2])]
    ranges += [(bounds[5] - 1, bounds[5] + 1), (bounds[5] + 1, bounds[9] + 1), (bounds[-2], bounds[-1])]
    expected = [[3], [3], [3], [0, 1], [4, 5], [5, 6, 7, 8, 9], [len(documents) - 1]]
    found = find_holders(shard, ranges)
    assert [[place.document for place in places] for places in found] == expected
    for places in found:
        for place in places:
            document = documents[place.document]
            assert (place.start, place.tokens) == (bounds[place.document], len(document.tokens))
            assert (place.source, place.row, place.hash) == (document.source, document.row, document.hash.hex())
    assert find_holders(shard, []) == []

"""A real set with a planted fault, end to end: generated strings in the source that has 3 % of the tokens.

The set is built by the pipeline's command from the standard library: code and docstrings in the large sources, in the
small one pieces of tkinter and IDLE and 60 documents of the kind that spoilt a model.
"""

import ast
import json
import random
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest

from shards.__main__ import main
from shards.audit.audit import audit
from shards.cli.inspect_set import find_shard
from shards.format.reader import open_set
from shards.trace.block_list import write_block_list
from shards.trace.search import Query
from shards.trace.trace import trace, trace_token

pytestmark = pytest.mark.long


PLANTED = ("PersonX", "PersonY", "fefefe", "@.@")
"""Strings that the planted documents are full of and no other document holds."""


def library_files():
    """Return the standard library's modules, tests left out."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(file for file in root.rglob("*.py") if "site-packages" not in file.parts)
    return [file for file in files if "test" not in file.relative_to(root).parts]


def read(file):
    """Return a file's text."""
    return file.read_text(encoding="utf-8", errors="replace")


def docstrings(files):
    """Return long docstrings: prose."""
    found = []
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(read(file))
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node)
                if text and len(text) > 200:
                    found.append(text)
    return found


def planted_documents():
    """Return 60 documents of generated sentences."""
    rng = random.Random(3)
    verbs = ["gives", "thanks", "asks", "visits", "forgives", "remembers", "follows", "pays"]
    things = ["a gift", "the bill", "a favour", "an old friend", "the AndroidRuntime", "usavik", "the oardvark"]
    documents = []
    for number in range(60):
        lines = [f"{number}: PersonX and PersonY"]
        for _ in range(rng.randint(8, 30)):
            one, other = rng.choice(["XY", "YX"])
            lines.append(f"Person{one} {rng.choice(verbs)} Person{other} {rng.choice(things)} @.@ fefefe")
        documents.append("\n".join(lines))
    return documents


@pytest.fixture(scope="module")
def planted_set(tmp_path_factory):
    """Build the set with the pipeline's command; return its folder."""
    folder = tmp_path_factory.mktemp("planted")
    small = [file for file in library_files() if {"tkinter", "idlelib"} & set(file.parts)]
    large = [file for file in library_files() if file not in small]
    pieces = [read(file)[start : start + 2000] for file in small for start in range(0, 20_000, 2000)]
    pieces = [piece for piece in pieces if len(piece) > 1000]
    random.Random(1).shuffle(pieces)
    sources = {
        "code": ([read(file) for file in large], 87),
        "prose": (docstrings(large), 10),
        "extra": (pieces[:100] + planted_documents(), 3),
    }
    lines = ['name = "planted"', "seed = 5"]
    for name, (texts, weight) in sources.items():
        rows = [json.dumps({"text": text}) for text in dict.fromkeys(texts) if text]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
        lines += ["[[sources]]", f'name = "{name}"', f'paths = ["{folder}/{name}.jsonl"]', f"weight = {weight}"]
    lines += ["[tokenizer]", "vocab_size = 4000", 'special_tokens = ["<|endoftext|>", "<|pad|>"]']
    lines += ["[mix]", 'tokens = "max"', 'when_short = "shrink"', "[split]", "val_tokens = 50_000"]
    (folder / "recipe.toml").write_text("\n".join([*lines, "[shards]", "tokens = 400_000", ""]))
    command = [sys.executable, "-m", "pipeline", "build", str(folder / "recipe.toml"), "--out", str(folder / "set")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "set"


@pytest.fixture(scope="module")
def documents(planted_set):
    """Return every document of the set with its text, plainly decoded."""
    shard_set = open_set(planted_set)
    found = []
    for shard in shard_set.shards:
        tokens = shard.read()
        for number, row in enumerate(shard.documents().to_pylist()):
            text = shard_set.vocabulary.decode(tokens[row["start"] : row["start"] + row["length"] - 1]).decode()
            found.append({"shard": shard.name, "document": number, "hash": row["hash"].hex(), "text": text})
    return found


def test_audit_lists_the_planted_ids_among_the_ten_most_suspicious(planted_set):
    train = open_set(planted_set).manifest.splits["train"]
    assert train.sources["extra"].tokens / train.tokens == pytest.approx(0.03, abs=0.002)
    rows = audit(planted_set).check("concentrated").findings[:10]
    suspicious = [row.values["text"].strip() for row in rows]
    assert set(PLANTED) <= set(suspicious)
    for row in rows:
        if row.values["text"].strip() in PLANTED:
            (shown,) = row.shown
            assert (shown["source"], row.values["sources"].keys()) == ("extra", {"extra"})
            assert "Person" in shown["before"] + shown["hit"] + shown["after"]


def test_the_audit_names_the_flag_that_lists_their_documents(planted_set, capsys):
    main(["audit", str(planted_set), "--workers", "1"])
    assert "--write-block-list FILE lists the documents" in capsys.readouterr().out


def test_trace_finds_exactly_the_planted_documents(planted_set, documents, tmp_path):
    planted = [document for document in documents if "PersonX" in document["text"]]
    assert len(planted) == 60
    shard_set = open_set(planted_set)
    for query in (Query("text", "PersonX"), Query("regex", r"\bPersonX\b"), Query("text", "onX and Pers")):
        found = trace(planted_set, query, limit=None)
        places = [(hit.place.shard, hit.place.document, hit.place.hash) for hit in found.shown]
        assert places == [(document["shard"], document["document"], document["hash"]) for document in planted]
        assert {name: counts["documents"] for name, counts in found.sources.items()} == {"extra": 60}
        write_block_list(tmp_path / "block.txt", found.hashes, shard_set, asked=found.asked)
        listed = {line for line in (tmp_path / "block.txt").read_text().split("\n") if line and line[0] != "#"}
        assert listed == {document["hash"] for document in planted}


def test_ids_of_the_audit_lead_to_the_planted_documents(planted_set, documents):
    vocabulary = open_set(planted_set).tokenizer().get_vocab()
    planted = {document["hash"] for document in documents if "PersonX" in document["text"]}
    found = trace(planted_set, Query("token", str(vocabulary["Ġfefefe"])), limit=None)
    assert {hit.place.hash for hit in found.shown} == planted
    hit = found.shown[0]
    shard_set = open_set(planted_set)
    shard = find_shard(shard_set, hit.place.shard)
    assert trace_token(shard_set, shard, hit.place.start + hit.position).place == hit.place


def test_strings_of_real_text_are_found_as_by_plain_search(planted_set, documents):
    rng = random.Random(2)
    for _ in range(25):
        text = rng.choice(documents)["text"]
        start = rng.randrange(max(1, len(text) - 30))
        needle = text[start : start + rng.randint(1, 30)]
        found = trace(planted_set, Query("text", needle), limit=None)
        holding = [(d["shard"], d["document"], d["text"].count(needle)) for d in documents if needle in d["text"]]
        assert [(hit.place.shard, hit.place.document, hit.hits) for hit in found.shown] == holding

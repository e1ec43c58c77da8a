"""The tokenizer: what is trained equals what `tokenizers` trains. Its ids are compared in `test_tokenizer_kinds.py`."""

import json
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from tokenizers import Tokenizer

from pipeline.engine.tasks import Report
from pipeline.recipe.schema import TokenizerRecipe
from pipeline.tokenizer.encoder import Encoder, load_encoder
from pipeline.tokenizer.given_tokenizer import TokenizerError, read_encoder_file
from pipeline.tokenizer.sample import DOCUMENT_SEPARATOR, TokenizerTask
from pipeline.tokenizer.train import build_tokenizer_json, pre_tokenizer, train_merges, train_tokenizer
from shards.errors import RunError
from shards.format.tokenizer_json import PATTERNS, make_plain
from tests.support.reading import files_source, list_spans_of
from tests.support.recipes import write_texts
from tests.support.shard_sets import train_bpe
from tests.support.tokenizers import with_splitter

SPECIAL = ["<|endoftext|>", "<|pad|>", "<|user|>"]
NAMES = ["gpt2", "llama3", "qwen2", "o200k"]
VOCAB_SIZE = 900

# As published: Llama 3's and Qwen2's tokenizer.json, tiktoken's o200k_base.
PUBLISHED = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


Trained = dict[tuple[str, str], str]


@pytest.fixture(scope="module")
def trained(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Return the tokenizer.json of each pre-tokenizer and order of ids, trained on the documents."""
    sample = tmp_path_factory.mktemp("sample") / "sample.bin"
    sample.write_bytes(b"".join(text.encode() + DOCUMENT_SEPARATOR for text in documents))
    found: Trained = {}
    for name in NAMES:
        merges = train_merges(sample, VOCAB_SIZE, SPECIAL, name)
        for order in ("merge", "frequency"):
            keys = {"special_tokens": SPECIAL, "pretokenizer": name, "id_order": order}
            found[name, order] = build_tokenizer_json(merges, TokenizerRecipe.model_validate(keys), sample)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_file_is_what_tokenizers_trains(name: str, trained: Trained, documents: list[str]):
    assert PATTERNS == PUBLISHED
    found = json.loads(trained[name, "merge"])
    expected = json.loads(train_bpe(documents, VOCAB_SIZE, SPECIAL, pre_tokenizer(name)).to_str())
    assert len(found["model"]["vocab"]) == VOCAB_SIZE
    for key in ("model", "added_tokens", "pre_tokenizer"):
        assert found[key] == expected[key], key
    assert list(found["model"]["vocab"].values()) == list(range(VOCAB_SIZE))
    assert [found["model"]["vocab"][token] for token in SPECIAL] == [0, 1, 2]


@pytest.mark.parametrize("name", NAMES)
def test_frequent_entries_have_small_bytes(name: str, trained: Trained, documents: list[str]):
    """Counted again by `tokenizers`, from all of the sample."""
    before, after = (json.loads(trained[name, order]) for order in ("merge", "frequency"))
    plain = Tokenizer.from_str(json.dumps(make_plain(before)))
    counts = Counter(token for text in documents for token in plain.encode(text).tokens)
    old = before["model"].pop("vocab")
    ranked = sorted(old.keys() - SPECIAL, key=lambda entry: (-counts[entry], old[entry]))
    ids = sorted(range(3, VOCAB_SIZE), key=lambda number: (number % 256 + 4) * (number // 256 + 4))
    new = after["model"].pop("vocab")
    assert {number: entry for entry, number in new.items()} == dict(enumerate(SPECIAL)) | dict(
        zip(ids, ranked, strict=True)
    )
    assert new != old
    assert after == before  # all else


@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_too_large_for_the_sample(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    texts = ["low lower lowest", "new newer newest low"] * 5000
    write_texts(tmp_path / "a.jsonl", texts)
    source = files_source(tmp_path / "a.jsonl")
    most = train_bpe(texts, 5000, SPECIAL, pre_tokenizer(name)).get_vocab_size()
    for vocab_size in (most, most + 1, 5000):
        recipe = TokenizerRecipe(vocab_size=vocab_size, special_tokens=SPECIAL, pretokenizer=name)
        task = TokenizerTask(recipe, (source,), {"s": tuple(list_spans_of(source))}, {"s": 1.0}, 1337, {})
        (tmp_path / str(vocab_size)).mkdir()
        if vocab_size == 5000:  # far too large, for which gigatoken takes minutes
            monkeypatch.setattr("gigatoken.train_bpe", None)
        if vocab_size == most:
            train_tokenizer(tmp_path / str(vocab_size), task, Report())
            info = read_encoder_file(tmp_path / str(vocab_size) / "tokenizer.json", eos_token=SPECIAL[0])
            assert info.vocab_size == most
            continue
        with pytest.raises(TokenizerError, match=rf"{vocab_size:,} is too large for .* offers (at most \d+|{most}) "):
            train_tokenizer(tmp_path / str(vocab_size), task, Report())


def test_training_that_takes_too_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pipeline.tokenizer.train.map_tasks", Mock(side_effect=ChildProcessError("--workers")))
    (tmp_path / "s").write_bytes(b"text")
    with pytest.raises(
        RunError, match=r"out of memory\? Set a smaller tokenizer\.sample_bytes, or give a tokenizer `f"
    ):
        train_merges(tmp_path / "s", 300, [], "gpt2")


def test_a_good_file(trained: Trained, tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text(trained["gpt2", "merge"])
    info = read_encoder_file(path, eos_token="<|pad|>")
    assert (info.vocab_size, info.eos_id) == (VOCAB_SIZE, 1)
    assert info.special_tokens == {"<|endoftext|>": 0, "<|pad|>": 1, "<|user|>": 2}
    load_encoder(str(path), info.sha256)
    path.write_text(trained["gpt2", "merge"] + " ")
    with pytest.raises(TokenizerError, match="changed while the build ran"):
        load_encoder(f"{tmp_path}/./tokenizer.json", info.sha256)


def test_a_document_that_loses_characters_stops_the_build(trained: Trained):
    stars = {"type": "Split", "pattern": {"String": "***"}, "behavior": "Removed"}
    encoder = Encoder(with_splitter(json.loads(trained["gpt2", "merge"]), stars))
    with pytest.raises(TokenizerError, match=r"a document of 6 bytes becomes tokens of 3 bytes\. It begins with 'a\*"):
        encoder.encode(pa.array(["kept", "a***bc"], pa.large_string()))

"""The tokenizer: what is trained equals what `tokenizers` trains, what is encoded equals what it encodes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from pipeline.recipe.schema import TokenizerRecipe
from pipeline.recipe.sources import FilesSource
from pipeline.tokenizer.encoder import Encoder, load_encoder
from pipeline.tokenizer.given_tokenizer import TokenizerError, read_encoder_file
from pipeline.tokenizer.sample import TokenizerTask
from pipeline.tokenizer.train import PATTERNS, build_tokenizer_json, pre_tokenizer, train_merges, train_tokenizer
from shards.errors import RunError
from shards.format.tokenizer_json import byte_characters
from tests.support.builds import list_spans_of
from tests.support.tokenizers import write_sample

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


def write_by_merge(merges: list[tuple[str, str]], special: list[str], name: str) -> str:
    """Return a tokenizer.json with ids in the order of merges, which needs no sample."""
    recipe = TokenizerRecipe(special_tokens=special, pretokenizer=name, id_order="merge")  # type: ignore[arg-type]
    return build_tokenizer_json(merges, recipe, Path())


def reference(texts: list[str], name: str, vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train with `tokenizers` alone."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(name)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def trained(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the tokenizer.json of each pre-tokenizer, trained on the documents."""
    sample = write_sample(tmp_path_factory.mktemp("sample") / "sample.bin", documents)
    return {name: write_by_merge(train_merges(sample, VOCAB_SIZE, SPECIAL, name), SPECIAL, name) for name in NAMES}


def encoder_of(text: str) -> Encoder:
    data = json.loads(text)
    return Encoder(data)


@pytest.fixture(scope="module")
def encoders(trained: dict[str, str]) -> dict[str, Encoder]:
    return {name: encoder_of(text) for name, text in trained.items()}


@pytest.mark.parametrize("name", NAMES)
def test_file_is_what_tokenizers_trains(name: str, trained: dict[str, str], documents: list[str]) -> None:
    assert PATTERNS == PUBLISHED
    found, expected = json.loads(trained[name]), json.loads(reference(documents, name).to_str())
    assert len(found["model"]["vocab"]) == VOCAB_SIZE
    assert found["model"]["merges"] == expected["model"]["merges"]
    assert found["model"]["vocab"] == expected["model"]["vocab"]
    assert found["added_tokens"] == expected["added_tokens"]
    assert found["pre_tokenizer"] == expected["pre_tokenizer"]
    assert list(found["model"]["vocab"].values()) == list(range(VOCAB_SIZE))
    assert [found["model"]["vocab"][token] for token in SPECIAL] == [0, 1, 2]


def encode(encoder: Encoder, texts: list[str]) -> list[list[int]]:
    ids, offsets = encoder.encode(pa.array(texts, pa.large_string()))
    return [ids[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]


NAMED = ["\r\n", "\x00", "e\u0301", "👩\u200d👩\u200d👧", "中文", " ", "  ", "'s", "'S", "'ſ", "İ", "\u2028", "\x85"]
ODD = st.one_of(
    st.characters(exclude_categories=["Cs"]), st.sampled_from([*NAMED, *SPECIAL]), st.sampled_from("abAB12 .,\n\t")
)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150)
@given(parts=st.lists(ODD, max_size=30))
@example(parts=["<|endoftext|>"])
@example(parts=["x<|endoftext|><|pad|>", "<|user|>\r\n"])
def test_any_text_encodes_alike_and_decodes_back(name: str, trained: Any, encoders: Any, parts: list[str]) -> None:
    text = "".join(parts)
    (found,) = encode(encoders[name], [text])
    assert found == encoders[name].encode_reference(text)
    vocabulary = {index: entry for entry, index in json.loads(trained[name])["model"]["vocab"].items()}
    values = {character: byte for byte, character in enumerate(byte_characters())}
    assert bytes(values[character] for token in found for character in vocabulary[token]) == text.encode()


@pytest.mark.parametrize("token", ["the", "Ċ"])
def test_a_special_token_that_is_an_ordinary_word(token: str) -> None:
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.special_tokens: \[.*\] are ordinary words of this vocabulary\. "
    ):
        write_by_merge(merges, [token], "gpt2")


@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_too_large_for_the_sample(
    name: str, tmp_path: Path, write_parquet: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["low lower lowest", "new newer newest low"] * 5000
    path = write_parquet(tmp_path / "a.parquet", texts)
    source = FilesSource(name="s", weight=1.0, paths=[str(path)])
    most = reference(texts, name, 5000).get_vocab_size()
    for vocab_size in (most, most + 1, 5000):
        recipe = TokenizerRecipe(vocab_size=vocab_size, special_tokens=SPECIAL, pretokenizer=name)
        task = TokenizerTask(recipe, (source,), {"s": tuple(list_spans_of(source))}, (1.0,), 1337)
        (tmp_path / str(vocab_size)).mkdir()
        if vocab_size == 5000:  # far too large, for which gigatoken takes minutes
            monkeypatch.setattr("gigatoken.train_bpe", None)
        if vocab_size == most:
            train_tokenizer(tmp_path / str(vocab_size), task, lambda done, tokens: None)
            info = read_encoder_file(tmp_path / str(vocab_size) / "tokenizer.json", eos_token=SPECIAL[0])
            assert info.vocab_size == most
            continue
        with pytest.raises(TokenizerError, match=rf"{vocab_size:,} is too large for .* offers (at most \d+|{most}) "):
            train_tokenizer(tmp_path / str(vocab_size), task, lambda done, tokens: None)


def test_training_that_takes_too_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.tokenizer.train.map_tasks", Mock(side_effect=ChildProcessError("--workers")))
    (tmp_path / "s").write_bytes(b"text")
    with pytest.raises(
        RunError, match=r"out of memory\? Set a smaller tokenizer\.sample_bytes, or give a tokenizer `f"
    ):
        train_merges(tmp_path / "s", 300, [], "gpt2")


def changed(text: str, change: Callable[[dict[str, Any]], Any]) -> str:
    data = json.loads(text)
    change(data)
    return json.dumps(data)


def test_a_good_file(trained: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(trained["gpt2"])
    info = read_encoder_file(path, eos_token="<|pad|>")
    assert (info.vocab_size, info.eos_id) == (VOCAB_SIZE, 1)
    assert info.special_tokens == {"<|endoftext|>": 0, "<|pad|>": 1, "<|user|>": 2}
    encoder = load_encoder(str(path), info.sha256)
    assert encode(encoder, ["<|pad|>"]) == encode(encoder_of(trained["gpt2"]), ["<|pad|>"])
    path.write_text(trained["gpt2"] + " ")
    with pytest.raises(TokenizerError, match="changed while the build ran"):
        load_encoder(f"{tmp_path}/./tokenizer.json", info.sha256)


FAULTY_FILES: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("has the model 'WordPiece': its entries do not record the", lambda d: d["model"].update(type="WordPiece")),
    ("expected a byte-level or SentencePiece", lambda d: d.update(pre_tokenizer={"type": "Whitespace"})),
    ("no special token '<|endoftext|>' to end documents", lambda d: d.update(added_tokens=[])),
    ("its pre-tokenizer adds a space before each document", lambda d: d["pre_tokenizer"].update(add_prefix_space=True)),
    ("its pre-tokenizer does not split text into words", lambda d: d["pre_tokenizer"].update(use_regex=False)),
    ("special token '<|pad|>' has the id of an ordinary word", lambda d: d["added_tokens"][1].update(id=300)),
    ("model.dropout is 0.1", lambda d: d["model"].update(dropout=0.1)),
    ("has no entry for 1 of the 256 bytes, 0x7a first", lambda d: d["model"]["vocab"].pop("z")),
    ("entry 'a b' holds ' ', which is not in the byte-level", lambda d: d["model"]["vocab"].update({"a b": 9})),
    ("has ids of 16777216 and above", lambda d: d["model"]["vocab"].update(far=1 << 40)),
    ("not a tokenizer.json with a vocabulary: a value is not of the", lambda d: d["model"].update(vocab=[["a", 0]])),
    ("not a tokenizer.json with a vocabulary: the key 'model' is", lambda d: d.pop("model")),
]


@pytest.mark.parametrize(("message", "change"), FAULTY_FILES, ids=[message[:40] for message, _ in FAULTY_FILES])
def test_files_that_are_refused(message: str, change: Any, trained: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(changed(trained["gpt2"], change))
    with pytest.raises(TokenizerError) as caught:
        read_encoder_file(path, eos_token=SPECIAL[0])
    assert str(caught.value).startswith(f"{path}: {message}")


OTHER_KINDS = {
    "vocab.txt": (b"[PAD]\r\n[UNK]\r\n[CLS]\r\nthe\r\n##s\r\n", r"a WordPiece's vocab\.txt, not .* one\. transformers"),
    "merges.txt": ("#version: 0.2\nĠ t\nh e\n".encode(), r"a merges\.txt: .*, not a tokenizer\.json\. transformers"),
    "pairs.txt": (b"t h\nth e\n", r"a merges\.txt: .*, not a tokenizer\.json\. transformers"),
    "vocab.json": (b'{"a": 0}', r"a vocab\.json: .*, not a tokenizer\.json\. transformers"),
    "o200k.tiktoken": (b"IQ== 0\nIg== 1\n", r"a tiktoken file, not a tokenizer\.json\. transformers"),
    "deep.json": (b'{"model": ' + b"[" * 100_000, r"not .*: nested too deeply\. Use another file, or train one\.$"),
    "latin.json": (b'{"model": "\xe9"}', r"not .*: not UTF-8 \(byte 11\)\. Use another file, or train one\.$"),
    "notes.txt": (b"some text\n\nof more words\n", r"not .*: Expecting value.* Use another file, or train one\.$"),
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_what_is_no_tokenizer_json_is_called_what_it_is(name: str, tmp_path: Path) -> None:
    content, message = OTHER_KINDS[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message) as caught:
        read_encoder_file(tmp_path / name, eos_token="<eos>")
    makes = f'AutoTokenizer.from_pretrained("{tmp_path}").backend_tokenizer.save("tokenizer.json")'
    assert (makes in str(caught.value)) == ("transformers" in message)


def with_splitter(text: str, splitter: dict[str, Any]) -> str:
    """Return a tokenizer.json that splits text by `splitter` before it becomes bytes."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    sequence = {"type": "Sequence", "pretokenizers": [splitter, level]}
    return changed(text, lambda data: data.update(pre_tokenizer=sequence))


WORDS = {"type": "Split", "pattern": {"Regex": r"\s?\w+|."}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    "splitter", [WORDS, {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"}]
)
def test_what_gigatoken_cannot_run_is_encoded_by_tokenizers(
    splitter: dict[str, Any], trained: dict[str, str], documents: list[str]
) -> None:
    text = with_splitter(trained["gpt2"], splitter)
    encoder = encoder_of(text)
    assert encoder.slow_because.startswith("gigatoken cannot run it (")
    plain = Tokenizer.from_str(text)
    plain.encode_special_tokens = True
    texts = ["", *documents[:40], "<|pad|> 12345", ""]
    found = encode(encoder, texts)
    assert found == [encoding.ids for encoding in plain.encode_batch(texts, add_special_tokens=False)]
    assert plain.decode_batch(found, skip_special_tokens=False) == texts
    assert encode(encoder, []) == []


def test_a_pre_tokenizer_that_loses_characters_is_refused(trained: dict[str, str]) -> None:
    spaces = {"type": "Split", "pattern": {"Regex": r"\s+"}, "behavior": "Removed", "invert": False}
    with pytest.raises(TokenizerError, match="does not keep text: a document of 68 bytes becomes tokens of 50 bytes"):
        encoder_of(with_splitter(trained["gpt2"], spaces))
    # A document that loses characters stops the build.
    stars = {"type": "Split", "pattern": {"String": "***"}, "behavior": "Removed", "invert": False}
    encoder = encoder_of(with_splitter(trained["gpt2"], stars))
    with pytest.raises(TokenizerError, match=r"a document of 6 bytes becomes tokens of 3 bytes\. It begins with 'a\*"):
        encode(encoder, ["kept", "a***bc"])

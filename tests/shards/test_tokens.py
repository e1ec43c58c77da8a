"""Ids as bytes: exact for every range of tokens, and refused where the vocabulary is not byte-level."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from shards.format.tokenizer import byte_alphabet, decode, parse_tokenizer, token_bytes


def test_alphabet_is_that_of_tokenizers():
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_decoding_gives_the_text_back(tokenizer, text):
    table = token_bytes(tokenizer.to_str().encode())
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert decode(ids, table) == text.encode()


def test_part_of_a_character_is_exact(tokenizer):
    table = token_bytes(tokenizer.to_str().encode())
    singles = [tokenizer.token_to_id(char) for char in byte_alphabet()]
    assert decode(singles, table) == bytes(byte_alphabet().values())


def test_special_tokens_stand_for_their_content(tokenizer):
    table = token_bytes(tokenizer.to_str().encode())
    assert table[tokenizer.token_to_id("<|endoftext|>")] == b"<|endoftext|>"
    assert len(table) == tokenizer.get_vocab_size()


def test_holes_are_empty():
    data = json.dumps({"model": {"vocab": {"a": 0, "b": 5}}, "added_tokens": []}).encode()
    assert token_bytes(data) == [b"a", b"", b"", b"", b"", b"b"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not a tokenizer file"),
        (b"[]", "not a tokenizer file"),
        (b'{"model": {"vocab": [["a", 0.1]]}}', "a vocab that is a list; expected a byte-level 'BPE' with an object"),
        (b'{"model": {"type": "WordPiece", "vocab": {"a": 0}}}', "model.type 'WordPiece'"),
        (b'{"model": {"vocab": {"a": -1}}}', "expected a whole number"),
        (b'{"model": {"vocab": {"a": true}}}', "expected a whole number"),
        (b'{"model": {"vocab": {"a": 1}}, "added_tokens": [{"content": "b"}]}', "not a tokenizer file"),
        (b'{"model": {"vocab": {"a": 99999999999}}}', "ids reach 99999999999"),
        ('{"model": {"vocab": {"▁the": 0}}}'.encode(), "byte-level"),
    ],
)
def test_what_is_no_byte_level_tokenizer_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        token_bytes(data)


def test_vocabulary_and_added_tokens(tokenizer):
    vocabulary, added = parse_tokenizer(tokenizer.to_str().encode())
    assert len(vocabulary) == 298
    assert added == {"<|endoftext|>": 298, "<|pad|>": 299}

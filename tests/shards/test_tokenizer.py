"""Ids as bytes: exact for every range of tokens, and refused where the vocabulary is not byte-level."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.format.tokenizer_json import byte_characters
from shards.format.vocabulary import read_vocabulary


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_decoding_gives_the_text_back(tokenizer, text):
    vocabulary = read_vocabulary(tokenizer.to_str().encode())
    tokenizer.encode_special_tokens = True
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert vocabulary.decode(ids) == vocabulary.decode(np.array(ids, np.uint16)) == text.encode()


def test_part_of_a_character_is_exact_and_special_tokens_stand_for_no_text(tokenizer):
    vocabulary = read_vocabulary(tokenizer.to_str().encode())
    singles = [tokenizer.token_to_id(character) for character in byte_characters()]
    assert vocabulary.decode(singles) == bytes(range(256))
    assert vocabulary.special == {"<|endoftext|>": 298, "<|pad|>": 299}
    assert vocabulary.entries[298] == b"<|endoftext|>"
    assert len(vocabulary) == tokenizer.get_vocab_size() == 300
    assert np.flatnonzero(vocabulary.special_mask()).tolist() == [298, 299]
    assert vocabulary.entry_lengths()[298] == 13
    assert vocabulary.text_lengths()[[0, 298, 299]].tolist() == [1, 0, 0]

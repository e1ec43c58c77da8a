"""The façade: `open_set`, splits, shards, tokens and documents; and the same files through other programs."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import shards
from shards.audit.audit import audit
from shards.format.manifest import MANIFEST_FILE
from shards.format.shard import document_schema
from shards.trace.search import Query
from shards.trace.trace import trace
from shards.validation.validate import validate
from tests.support.opened import record_opened
from tests.support.shard_sets import cut_train, write_set


def test_facade(good_set, plan):
    shard_set = shards.open_set(str(good_set))
    assert [shard.name for shard in shard_set.shards] == ["train-00000", "train-00001", "val-00000"]
    assert {name: len(split) for name, split in shard_set.splits.items()} == {"train": 2, "val": 1}
    assert (shard_set.dtype, shard_set.vocab_size, shard_set.eos_id) == (np.dtype("<u2"), 300, plan.eos_id)
    assert shard_set.tokenizer().token_to_id("<|endoftext|>") == plan.eos_id
    shard = shard_set.shard("val-00000")
    assert shard.num_documents == len(plan.documents["val"][0])
    assert shard.documents().schema.equals(document_schema())
    assert shard.documents(["source", "length"]).column_names == ["source", "length"]  # in the order asked for
    assert dir(shards) == ["Problem", "Shard", "ShardSet", "ShardSetError", "open_set", "report_to"]
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = shards.absent


SHARDS = 16


@pytest.fixture(scope="module")
def many(_shared_plan, tmp_path_factory):
    """Return a set with `SHARDS` training shards."""
    folder = tmp_path_factory.mktemp("many") / "set"
    write_set(folder, cut_train(_shared_plan, SHARDS))
    return folder


COMMANDS = {
    "trace token": lambda folder, out: trace(folder, Query("token", "5"), limit=3),
    "trace text": lambda folder, out: trace(folder, Query("text", "naïve"), limit=3),
    "audit": lambda folder, out: audit(folder, out=out, workers=1),
    "validate": lambda folder, out: validate(folder, level="full"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_manifest_is_not_read_again_however_many_shards_there_are(many, tmp_path, command):
    with record_opened() as opened:
        COMMANDS[command](many, tmp_path / "out")
    names = Counter(Path(path).name for path in opened if Path(path).parent == many)
    assert 1 <= names[MANIFEST_FILE] <= 2  # once to read it, once for its digest
    assert names["tokenizer.json"] <= 2

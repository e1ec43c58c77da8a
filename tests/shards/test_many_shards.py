"""Commands on a set of many shards: what is read of the set as a whole is read once, not once a shard."""

from collections import Counter
from pathlib import Path

import pytest

from shards.audit.audit import audit
from shards.format.manifest import MANIFEST_FILE
from shards.trace.search import Query
from shards.trace.trace import trace
from shards.validation.validate import validate
from tests.support.opened import record_opened
from tests.support.shard_sets import cut_train, write_set

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

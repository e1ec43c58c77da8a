"""A small good shard set, and the means to build it with a fault."""

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.support.servers.objects import ObjectServer, aws_environment
from tests.support.shard_sets import Plan, plan_set, train_tokenizer, write_set

TEXT = "the shard holds tokens of every document in hash order and ends with naïve café 中文 🙂 déjà-vu\n"
WORDS = TEXT.split(" ")


@pytest.fixture(scope="session", autouse=True)
def _an_empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Return a byte-level BPE of 300 entries, the last two of them special."""
    return train_tokenizer([TEXT] * 50, 298)


@pytest.fixture(scope="session")
def _shared_plan(tokenizer: Tokenizer) -> Plan:
    rng = random.Random(7)
    texts = {
        f"{source}-{unit}": [
            f"{source} {unit} {row} " + " ".join(rng.choices(WORDS, k=rng.randint(0, 700))) for row in range(600)
        ]
        for source, units in (("prose", 3), ("code", 2))
        for unit in range(units)
    }
    return plan_set(tokenizer, texts)


@pytest.fixture
def plan(_shared_plan: Plan) -> Plan:
    """Return the good set's plan; its lists may be changed, its documents must be replaced."""
    documents = {split: [list(shard) for shard in shards] for split, shards in _shared_plan.documents.items()}
    return dataclasses.replace(_shared_plan, documents=documents, epochs=dict(_shared_plan.epochs))


@pytest.fixture(scope="session")
def good_set(_shared_plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a whole set. Read only."""
    folder = tmp_path_factory.mktemp("good") / "set"
    write_set(folder, _shared_plan)
    return folder


@pytest.fixture
def server(moto: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> ObjectServer:
    """Return a server with an empty bucket, to which the environment of this process leads."""
    moto.reset()
    moto.empty_bucket()
    aws_environment(monkeypatch, moto.url)
    return moto

"""The corpora and the small set that stands for them have the same schemas."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.servers import corpora
from tests.support.servers.bucket import Bucket
from tests.support.servers.corpora import FINEMATH, FINEWEB, SMOLLM, STORIES


@pytest.mark.skipif(corpora.find() is None, reason="no corpora; set TOKENMILL_CORPORA to their folder")
def test_the_corpora_have_the_schemas_of_the_small_set(tmp_path: Path) -> None:
    real, small = corpora.write(tmp_path / "real", corpora.find()), corpora.write(tmp_path / "small")
    for repo, folder in (
        (FINEWEB, "sample/10BT"),
        (FINEMATH, "finemath-4plus"),
        (SMOLLM, "python-edu"),
        (STORIES, "data"),
    ):
        schemas = [pq.read_schema(sorted((one.root / repo / folder).iterdir())[0]) for one in (real, small)]
        assert schemas[0].equals(schemas[1])
        assert (real.root / repo / "README.md").is_file()
    assert (real.root / FINEWEB / "sample/10BT/000_00000.parquet").is_symlink()
    with Bucket(real.objects) as served:
        assert set(pq.read_table(real.root / SMOLLM / "python-edu")["blob_id"].to_pylist()) >= set(served.objects)

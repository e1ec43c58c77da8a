"""The corpora and the small set that stands for them have the same schemas."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.servers import corpora


@pytest.mark.long
@pytest.mark.skipif(corpora.find() is None, reason="no corpora; set TOKENMILL_CORPORA to their folder")
def test_the_corpora_have_the_schemas_of_the_small_set(tmp_path: Path) -> None:
    folder = corpora.find()
    assert folder is not None
    small = {
        "fineweb_edu": corpora.small_web(),
        "finemath": corpora.small_math(),
        "python_edu": corpora.small_code(tmp_path / "objects.tar"),
        "tinystories": corpora.small_stories(),
    }
    for name, table in small.items():
        assert pq.read_schema(folder / name / "part-00000.parquet").equals(table.schema), name

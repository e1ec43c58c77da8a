"""Validation passes a good set."""

import pytest

from shards.validate import validate


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", ["quick", "full"])
def test_good_set_has_no_problem(good_set, level, threads):
    report = validate(good_set, level=level, threads=threads)
    assert report.problems == []
    assert report.ok
    assert (report.shards, report.level) == (3, level)

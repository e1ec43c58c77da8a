"""The generator for nanochat under a loop like its own: killed and resumed with other ranks."""

from __future__ import annotations

from tests.integrations.runs import Start, assert_goes_on, run_until_done


def test_ranks_change(tmp_path):
    starts = [Start(ranks=2, kill_after=7), Start(ranks=1, kill_after=5), Start(ranks=2)]
    found = run_until_done("nanochat’s loader", tmp_path, starts, then="nanochat_loop.py")
    assert_goes_on(found, batch=8, saves=3)

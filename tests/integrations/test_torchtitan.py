"""torchtitan's data loader interface and distributed checkpoints: killed, then other ranks."""

from __future__ import annotations

from tests.integrations.runs import Start, assert_goes_on, run_until_done


def test_ranks_change(tmp_path):
    starts = [Start(ranks=2, kill_after=7), Start(ranks=1, kill_after=5, torchrun=True), Start(ranks=2)]
    found = run_until_done("torchtitan’s data loader", tmp_path, starts, then="torchtitan_loop.py")
    assert_goes_on(found, batch=8, saves=3)

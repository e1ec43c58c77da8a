"""A DataLoader under torchrun: killed and resumed with other workers and ranks."""

from __future__ import annotations

from tests.integrations.runs import Start, assert_goes_on, run_until_done


def test_ranks_and_workers_change(tmp_path):
    starts = [
        Start(ranks=2, kill_after=7),
        Start(ranks=1, changed=[("num_workers=2", "num_workers=3")], kill_after=5, torchrun=True),
        Start(ranks=2, changed=[("num_workers=2", "num_workers=1")]),
    ]
    assert_goes_on(run_until_done("torchrun", tmp_path, starts), batch=8, saves=3)

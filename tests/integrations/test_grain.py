"""Grain, with `TokenWindows` as its source: killed and resumed with other workers and ranks."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.runs import OTHER_ORDER, OTHER_SEED, Start, assert_goes_on, run_until_done


def test_ranks_and_workers_change(tmp_path: Path) -> None:
    # One rank while it is killed: the page's block has no gradients' all-reduce to keep ranks in step.
    starts = [
        Start(ranks=1, kill_after=7),
        Start(changed=[OTHER_SEED], refused=OTHER_ORDER),
        Start(ranks=1, changed=[("num_workers=2", "num_workers=1")], kill_after=5),
        Start(ranks=2, changed=[("num_workers=2", "num_workers=0")]),
    ]
    assert_goes_on(run_until_done("Grain", tmp_path, starts), batch=8, saves=3)

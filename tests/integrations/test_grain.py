"""Grain, with `TokenWindows` as its source: killed and resumed with other workers and ranks."""

from __future__ import annotations

from tests.integrations.runs import OTHER_ORDER, OTHER_SEED, Start, assert_goes_on, run_until_done

LOADS_LATE = ("if os.path.exists", "__import__('time').sleep(6 * rank)\nif os.path.exists")
"""The other rank has time for all of its steps and saves in these seconds, if nothing makes it wait."""


def test_ranks_and_workers_change(tmp_path):
    starts = [
        Start(ranks=2, kill_after=7),
        Start(changed=[OTHER_SEED], refused=OTHER_ORDER, torchrun=True),
        Start(changed=[("num_workers=2", "num_workers=1")], kill_after=5, torchrun=True),
        Start(ranks=2, changed=[("num_workers=2", "num_workers=0")]),
    ]
    assert_goes_on(run_until_done("Grain", tmp_path, starts), batch=8, saves=3)


def test_a_rank_that_loads_late_loads_what_the_others_do(tmp_path):
    starts = [
        Start(kill_after=7, torchrun=True),
        Start(ranks=2, changed=[LOADS_LATE, ("num_workers=2", "num_workers=0")]),
    ]
    assert_goes_on(run_until_done("Grain", tmp_path, starts), batch=8, saves=3)

"""The trainers of docs/trainers.md: killed and resumed with other workers and ranks; each sample is read once."""

import pytest

from tests.integrations.runs import OTHER_ORDER, OTHER_SEED, Start, assert_goes_on, run_until_done

NO_WORKERS, ONE_WORKER, THREE_WORKERS = (("num_workers=2", f"num_workers={number}") for number in (0, 1, 3))
STARTS = {
    "torchrun": [
        Start(ranks=2, kill_after=7),
        Start(ranks=1, changed=[THREE_WORKERS], kill_after=5, torchrun=True),
        Start(ranks=2, changed=[ONE_WORKER]),
    ],
    "Lightning": [
        Start(ranks=2, kill_after=7),
        Start(changed=[OTHER_SEED], refused=OTHER_ORDER),
        Start(ranks=1, changed=[NO_WORKERS], kill_after=5),
        Start(ranks=2, changed=[ONE_WORKER]),
    ],
    "HF Trainer with Accelerate": [
        Start(ranks=2, kill_after=7),
        Start(changed=[OTHER_SEED], refused=OTHER_ORDER),
        Start(changed=[("20, 8", "40, 4")], refused=OTHER_ORDER),
        Start(ranks=1, changed=[NO_WORKERS], kill_after=5),
        Start(ranks=2, changed=[ONE_WORKER]),
    ],
    "Grain": [
        Start(ranks=2, kill_after=7),
        Start(changed=[OTHER_SEED], refused=OTHER_ORDER, torchrun=True),
        Start(changed=[ONE_WORKER], kill_after=5, torchrun=True),
        Start(ranks=2, changed=[NO_WORKERS]),
    ],
    "torchtitan’s data loader": [Start(ranks=2, kill_after=7), Start(kill_after=5, torchrun=True), Start(ranks=2)],
    "nanochat’s loader": [Start(ranks=2, kill_after=7), Start(kill_after=5), Start(ranks=2)],
}
LOOPS = {"torchtitan’s data loader": "torchtitan_loop.py", "nanochat’s loader": "nanochat_loop.py"}
LOADS_LATE = ("if os.path.exists", "__import__('time').sleep(6 * rank)\nif os.path.exists")
"""The other rank has time for all of its steps and saves in these seconds, if nothing makes it wait."""


@pytest.mark.parametrize("title", STARTS)
def test_ranks_and_workers_change(title, tmp_path):
    assert_goes_on(run_until_done(title, tmp_path, STARTS[title], then=LOOPS.get(title)))


def test_a_rank_of_grain_that_loads_late_loads_what_the_others_do(tmp_path):
    starts = [Start(kill_after=7, torchrun=True), Start(ranks=2, changed=[LOADS_LATE, NO_WORKERS])]
    assert_goes_on(run_until_done("Grain", tmp_path, starts))

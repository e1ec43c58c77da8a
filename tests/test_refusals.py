"""Every bad input of the golden file is refused, without a traceback, in the words that stand there."""

# pyright: basic

import pytest

from tests.support.refusals import Case, World, list_cases, say


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("refusals"))


COMPARED = [case for case in list_cases() if case.section == "runs that are compared"]


@pytest.mark.parametrize("case", [case for case in list_cases() if case not in COMPARED], ids=str)
def test_a_bad_input_is_refused_in_these_words(case: Case, world: World):
    said = say(world, case)
    assert said == case.said
    assert not {"| exit 0", "| nothing is raised"} & set(said)
    assert "Traceback" not in str(said)


@pytest.mark.parametrize("case", COMPARED, ids=str)
def test_runs_are_compared_in_these_words(case: Case, world: World):
    assert say(world, case) == case.said

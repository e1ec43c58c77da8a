"""What an ablation answers: from given scores of its trainings to the words, the costs and the notes."""

import copy
from typing import Any

import pytest

from tests.support.ablations import TRAIN, open_ablation, write_ablation
from tokenmill.experiments.ablation import Ablation
from tokenmill.experiments.answer import answer_ablation, show_scores
from tokenmill.experiments.proxy import ProxyResult

ARMS: list[dict[str, Any]] = [{"name": "plain"}, {"name": "other", "data": {"sources": {"sums": {"weight": 3}}}}]
ITEMS: dict[str, Any] = {"name": "held_out_2", "files": ["items.jsonl"]}
FIRST = [2.50, 2.52, 2.48]


def result(value: float, *, score: str = "held_out_bpb", text: str = "a") -> ProxyResult:
    """Return the result of a training with one score, of half an hour."""
    texts = {"held_out": text, "held_out_2": "b"}
    return ProxyResult(scores={score: {"value": value, "stderr": 0.1}}, texts=texts, trained_seconds=1800.0)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Ablation:
    """An ablation of two arms and three seeds, which has not run."""
    folder = tmp_path_factory.mktemp("a[1]")  # read as a glob, it is another
    (folder / "items.jsonl").touch()
    evals: dict[str, Any] = TRAIN["eval"] | {"tasks": [ITEMS]}
    return open_ablation(write_ablation(folder, *ARMS, train={"eval": evals}, seeds=[1, 2, 3]), folder / "out")


def answer(
    opened: Ablation, first: list[Any], other: list[Any], score: str = "held_out_bpb", looks: int = 1
) -> dict[str, Any]:
    """Return the answer of the ablation if its arms have these values, or results, one for each seed."""
    ablation, seeds = copy.copy(opened), opened.config.seeds[: len(first)]
    ablation.config = opened.config.with_values(seeds=seeds, scores=[score])
    ablation.looks = {"other": looks}
    ablation.trainings = [one for one in opened.trainings if one.seed in seeds]
    for training, one in zip(ablation.trainings, (*first, *other), strict=True):
        training.result = one if isinstance(one, ProxyResult) else result(one, score=score)
    return answer_ablation(ablation)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ([2.40, 2.42, 2.38], "better"),
        ([2.60, 2.63, 2.58], "worse"),
        (FIRST, "no difference: equal with every seed"),
        ([2.51, 2.51, 2.48], "no difference seen"),
        ([2.49, 2.54, 2.46], "no difference seen"),
        ([2.49, 2.48], "no difference shown: 2 of 2 seeds have its sign, as 50% of equal arms do"),
        ([2.45], "one seed: the effect of chance is not known"),
        ([2.40, 2.42, ProxyResult(failed="lost")], "better (2 of 3 seeds: the others failed)"),
        ([ProxyResult(failed="lost")] * 3, "not known: its trainings failed"),
        ([result(2.4, text="c") for _ in FIRST], "other text: the arms were not scored on the same documents or items"),
    ],
)
def test_the_words_say_what_the_numbers_support(opened: Ablation, other: list[Any], words: str):
    found = answer(opened, FIRST[: len(other)], other)
    assert found["scores"][0]["answer"] == "the first arm"
    assert found["scores"][1]["answer"].startswith(words)
    shown = show_scores(found["scores"])
    assert [row["score"] for row in shown] == ["held_out_bpb", ""]
    assert ("[" in (shown[1]["difference"] or "")) == (found["scores"][1]["low"] is not None)


def test_of_an_accuracy_more_is_better(opened: Ablation):
    assert answer(opened, [0.2, 0.21], [0.4, 0.41], "held_out_2_acc")["scores"][1]["answer"] == "better"


def test_costs_count_what_was_trained(opened: Ablation):
    repeating = result(2.4)
    repeating.tokens_repeated = 700
    found = answer(opened, FIRST, [repeating, result(2.4), ProxyResult(failed="lost")])
    tokens = 12 * 128
    assert found["costs"] == [
        {"arm": "plain", "trainings": 3, "tokens": 3 * tokens, "repeated": 0, "hours": 1.5, "dollars": 5.4},
        {"arm": "other", "trainings": 2, "tokens": 2 * tokens, "repeated": 700, "hours": 1.0, "dollars": 3.6},
    ]
    assert found["failed"] == [{"arm": "other", "seed": 3, "why": "lost"}]
    assert any(note.startswith("arm other: of 3,072 tokens, 700 are repeated") for note in found["notes"])
    assert any(note.startswith("failed: arm other, seed 3: lost.") for note in found["notes"])


def test_a_further_look_widens_the_interval_and_says_so(opened: Ablation):
    once, twice = (answer(opened, FIRST, [2.47, 2.46, 2.43], looks=looks) for looks in (1, 2))
    (_, row), (_, later) = once["scores"], twice["scores"]
    assert (row["answer"], row["confidence"]) == ("better", pytest.approx(0.95))
    assert (later["answer"][:20], later["confidence"]) == ("no difference shown:", pytest.approx(0.975))
    assert later["low"] < row["low"] < row["high"] < 0 < later["high"]
    assert not any("look" in note for note in once["notes"])
    (said,) = (note for note in twice["notes"] if note.startswith("look 2: "))
    assert "widened to 97.5000% or more" in said
    assert "in at most 7.50%, however many in 10%" in said


def test_a_score_that_decides_alone_is_not_corrected(opened: Ablation):
    scores = ["held_out_bpb", "held_out_2_bpb", "held_out_2_acc", "held_out_2_acc_norm"]
    ablation = copy.copy(opened)
    ablation.config = opened.config.with_values(scores=scores)
    for number, training in enumerate(ablation.trainings):
        values = {score: {"value": 2.0 + number * place % 5, "stderr": 0.1} for place, score in enumerate(scores, 2)}
        training.result = ProxyResult(scores=values, texts={"held_out": "a", "held_out_2": "b"})
    for alone, levels in (("", [1 - 0.05 / 4] * 4), (scores[0], [0.95] + [1 - 0.05 / 3] * 3)):
        found = answer_ablation(ablation, alone)
        rows = [row["confidence"] for row in found["scores"] if row["arm"] == "other"]
        assert rows == pytest.approx(levels)
        assert sum(note.startswith(f"{3 + (not alone)} comparisons: Holm's") for note in found["notes"]) == 1

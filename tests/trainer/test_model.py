"""The decoder: causality, attention groups, rotary positions, parameter counts, saving."""

import itertools
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask

from shards.terminal.reporter import no_progress
from shards.torch.batch import number_documents
from tests.trainer.conftest import make_config
from trainer.evaluation.eval_sets import Documents, measure_document_losses
from trainer.evaluation.eval_tasks import Text, measure_likelihoods
from trainer.model import decoder
from trainer.model.attention import KeyValueCache, attend, document_mask
from trainer.model.decoder import LanguageModel, build_model, count_parameters, flops_per_token, padded_vocab_size
from trainer.recipe import ModelConfig, load_train_recipe

ROOT = Path(__file__).parents[2]
VOCAB_SIZE = 200


def make_ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, VOCAB_SIZE, shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_flops_count_the_weights_that_are_multiplied(kind, tied):
    config = make_config(kind=kind, num_key_value_heads=4, tie_word_embeddings=tied)
    model = LanguageModel(config, VOCAB_SIZE)
    weights = sum(p.numel() for name, p in model.named_parameters() if "embed" not in name and "lm_head" not in name)
    expected = 6 * (weights + VOCAB_SIZE * 48) + 12 * 2 * 48 * 16
    assert flops_per_token(config, VOCAB_SIZE, 16) == expected


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("gpt2-134m", 134.994),
        ("gpt2-355m", 355),
        ("gpuburnout-1b", 1040),
        ("gpuburnout-1b-modern", 1040),
        ("llama-2b", 2008),
        ("tinystories-28m", 28),
        ("tinystories-28m-modern", 28),
        ("tinystories-91m", 91),
    ],
)
def test_a_shipped_recipe_has_its_parameters(name, millions):
    model = load_train_recipe(ROOT / f"recipes/train/{name}.toml").model
    assert model.vocab_size is not None
    assert count_parameters(model, model.vocab_size) == pytest.approx(millions * 1e6, rel=0.012)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_layer_that_begins_with_zeros_passes_on_the_residual_stream_and_learns(kind):
    model, plain = (
        build_model(make_config(kind=kind, num_key_value_heads=4, zero_init_residual=zero), VOCAB_SIZE, seed=1)
        for zero in (True, False)
    )
    for (name, weight), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        zero = name.endswith(("o_proj.weight", "down_proj.weight"))
        assert torch.equal(weight, torch.zeros_like(weight) if zero else other), name
    ids = make_ids(2, 9)
    with torch.no_grad():
        before, logits = model(ids), F.linear(model.model.norm(model.model.embed_tokens(ids)), model.lm_head.weight)
    if kind == "llama":  # a gpt2 adds its positions first
        assert torch.equal(before, logits[..., :VOCAB_SIZE])
    model(ids[:, :-1], ids[:, 1:]).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert all(gradients[f"model.layers.0.{name}.weight"].any() for name in ("self_attn.o_proj", "mlp.down_proj"))


def test_padded_ids_are_in_no_logits_and_no_loss():
    model = build_model(make_config(), VOCAB_SIZE, seed=1)
    assert padded_vocab_size(VOCAB_SIZE) == 256
    assert padded_vocab_size(256) == 256
    ids = make_ids(2, 9)
    with torch.no_grad():
        logits, loss = model(ids), model(ids[:, :-1], ids[:, 1:])
        assert model.lm_head is not None
        model.lm_head.weight[VOCAB_SIZE:] = 1e3
        assert torch.equal(model(ids[:, :-1], ids[:, 1:]), loss)
    assert logits.shape == (2, 9, VOCAB_SIZE)
    naive = -logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).mean()
    torch.testing.assert_close(loss, naive)
    # As if the padded ids had a logit of minus infinity: the same bits.
    padded = F.pad(logits[:, :-1], (0, 256 - VOCAB_SIZE), value=-torch.inf)
    assert torch.equal(F.cross_entropy(padded.flatten(0, 1), ids[:, 1:].flatten()), loss)


MODERN: dict[str, Any] = {"hidden_act": "relu2", "use_qk_norm": True}


@pytest.mark.parametrize("changes", [{}, {"kind": "gpt2"}, MODERN], ids=["llama", "gpt2", "modern"])
def test_the_cache_gives_the_logits_of_the_whole_sequence(changes):
    model = build_model(make_config(num_key_value_heads=4, **changes), VOCAB_SIZE, seed=1)
    ids = make_ids(1, 12)
    cache = KeyValueCache()
    with torch.no_grad():
        whole = model(ids)
        parts = [model(ids[:, :6], cache=cache)] + [model(ids[:, i : i + 1], cache=cache) for i in range(6, 12)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-5)  # so no token sees a later one
    assert cache.length == 12


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_document_mask_gives_the_losses_of_separate_documents(kind):
    model = build_model(make_config(kind=kind, num_key_value_heads=4), VOCAB_SIZE, seed=1)
    ids = make_ids(2, 25)
    eos_id, ends = 7, ([5, 6, 17], [24])  # a document of one token, one that ends with the row
    ids[ids == eos_id] = 8
    for row, places in enumerate(ends):
        ids[row, places] = eos_id
    inputs, targets = ids[:, :-1], ids[:, 1:]
    with torch.no_grad():
        together = model(inputs, targets, reduction="none", documents=number_documents(inputs, eos_id))
        for row, bounds in enumerate([(0, 6, 7, 18, 24), (0, 24)]):
            for start, stop in itertools.pairwise(bounds):
                alone = model(inputs[row : row + 1, start:stop], targets[row : row + 1, start:stop], reduction="none")
                torch.testing.assert_close(together[row, start:stop], alone[0], rtol=1e-5, atol=1e-5)
        assert not torch.allclose(together, model(inputs, targets, reduction="none"), atol=1e-3)


@pytest.mark.parametrize("bos_id", [None, 5])
def test_every_reader_of_a_model_sees_what_training_shows(evaluated, bos_id):
    train = evaluated.train.with_values(document_mask=True)
    trained, eos_id = replace(evaluated, train=train, bos_id=bos_id), evaluated.eos_id
    before, text = list(range(10, 18)), list(range(20, 33))
    first, second = ([*([bos_id] if bos_id else []), *ids, eos_id] for ids in (before, text))
    window = torch.tensor([first + second])
    begin = len(first) - (bos_id is None)  # where the document's BOS is, or the EOS before it
    with torch.no_grad():
        shown = trained.model(window, documents=trained.number_documents(window))[0, begin:-1]
        cache, prompt = KeyValueCache(), [trained.begin_id, *text]
        continued = torch.cat([trained.model(torch.tensor([[token]]), cache=cache)[0] for token in prompt])
        nats = shown.double().log_softmax(-1)[range(len(prompt)), [*text, eos_id]]
        ((likelihood, _),) = measure_likelihoods(trained, [[Text(prompt, len(text))]])
        bounds, targets = np.array([0, len(second)]), np.ones(len(second), np.bool_)
        document = Documents(np.array(second), bounds, targets, np.ones(1), pa.table({}))
        losses = measure_document_losses(trained, document, no_progress)
    torch.testing.assert_close(continued, shown, rtol=1e-4, atol=1e-4)
    assert likelihood == pytest.approx([nats[:-1].sum().item()], rel=1e-5)
    assert losses == pytest.approx([-nats.sum().item()], rel=1e-5)


class OwnFeedForward(decoder.FeedForward):
    """A part of a model that sets what it has in some ways."""

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self.down_proj.weight.data.fill_(2)
        self.up_proj.weight = torch.nn.Parameter(torch.full_like(self.up_proj.weight, 3))
        self.other = torch.nn.Linear(4, 4)
        torch.nn.init.eye_(self.other.weight)
        self.scale, self.drawn = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.randn(2, 2))
        self.register_buffer("table", torch.arange(3.0))


def test_what_a_module_sets_stays_and_the_rest_is_drawn_as_without_it(monkeypatch):
    plain = dict(build_model(make_config(), VOCAB_SIZE, seed=1).named_parameters())
    assert all(weight.isfinite().all() for weight in plain.values())
    monkeypatch.setattr(decoder, "FeedForward", OwnFeedForward)
    torch.manual_seed(9)
    model, again = (build_model(make_config(), VOCAB_SIZE, seed=1) for _ in range(2))
    own: Any = model.model.layers[1].mlp
    assert [own.down_proj.weight.unique().item(), own.up_proj.weight.unique().item()] == [2, 3]
    assert torch.equal(own.other.weight, torch.eye(4))
    assert (own.scale.tolist(), own.table.tolist()) == ([0, 0, 0], [0, 1, 2])
    assert all(torch.equal(*both) for both in zip(model.parameters(), again.parameters(), strict=True))
    first = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(dict(model.named_parameters())[first], plain[first])


@pytest.mark.filterwarnings("ignore:flex_attention called without")  # on the CPU, where only this test uses it
def test_flex_attention_equals_the_dense_mask():
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(2, 4, 64, 16, generator=generator)
    key, value = torch.randn(2, 2, 2, 64, 16, generator=generator)
    documents = torch.randint(0, 2, (2, 64), generator=generator).cumsum(1)

    def allowed(row: torch.Tensor, _head: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (documents[row, q] == documents[row, k])

    blocks = create_block_mask(allowed, 2, None, 64, 64, device="cpu")
    dense = attend(query, key, value, document_mask(documents))
    torch.testing.assert_close(attend(query, key, value, blocks), dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_activation_checkpointing_changes_no_gradient_and_keeps_less(kind):
    ids, kept = make_ids(2, 17), list[int]()
    gradients: list[list[torch.Tensor | None]] = []
    for choice in ("none", "selective", "full"):
        model = build_model(make_config(kind=kind, num_key_value_heads=4), VOCAB_SIZE, seed=1)
        model.activation_checkpointing = choice
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            loss = model(ids[:, :-1], ids[:, 1:])
        loss.backward()
        kept.append(sum(sizes))
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert max(kept[1:]) < kept[0]
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-5, atol=1e-7)


GATED = """
import sys, torch
from trainer.device import score_eagerly
from trainer.evaluation.eval_sets import measure_document_losses
from trainer.evaluation.eval_tasks import Text, measure_likelihoods
from trainer.model import decoder
from trainer.model.attention import KeyValueCache
from trainer.model.decoder import build_model
from trainer.recipe import ModelConfig
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 16}
model = build_model(ModelConfig(kind="llama", attention_gate=True, **sizes), 200, seed=1)
ids, cache = torch.arange(12)[None], KeyValueCache()
with torch.no_grad(), score_eagerly("fp32", torch.device("cpu")):
    model(ids)
assert "torch._dynamo" not in sys.modules, "a model that is not compiled loads the compiler"
alone = torch.cat([model(ids[:, [at]], cache=cache) for at in range(12)], 1)
torch.testing.assert_close(alone, model(ids), rtol=1e-5, atol=1e-5)
model(ids[:, :-1], ids[:, 1:]).backward()
assert model.model.layers[0].self_attn.gate.weight.grad.any()
"""


def test_the_part_that_the_page_adds_to_the_model_works(tmp_path):
    shutil.copytree(ROOT / "trainer", tmp_path / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    (block,) = re.findall(r"^```diff\n(.*?)^```", (ROOT / "docs/architecture.md").read_text(), re.M | re.S)
    for part in re.split(r"^\+\+\+ ", block, flags=re.M)[1:]:
        name, *hunks = re.split(r"\n@@ .*\n", part)
        text = (tmp_path / name).read_text()
        for lines in (hunk.rstrip().splitlines() for hunk in hunks):
            old, new = ("\n".join(line[1:] for line in lines if line[0] in kept) for kept in (" ", " +"))
            assert text.count(old) == 1, f"{name} has changed; correct the diff in docs/architecture.md: {old}"
            text = text.replace(old, new)
        (tmp_path / name).write_text(text)
    subprocess.run([sys.executable, "-c", GATED], cwd=tmp_path, check=True)

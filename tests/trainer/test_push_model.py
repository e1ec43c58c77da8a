"""A run's model on the Hub: one commit with its card, whole or not at all, whatever breaks on the way."""

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
import yaml

from tests.support.builds import read_json
from tests.support.recipes import to_toml
from tests.support.servers.hub import Hub
from trainer.weights.trained_model import load_model

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "tester/mill"
PUSH = ("--model", "--license", "apache-2.0")
FILES = {"README.md", "config.json", "export.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
PHASES = "phases=[{name='first | look', until_step=4, milestones=[2]}, {name='the rest', until_step=8}]"


@pytest.fixture(scope="module")
def priced(train, item_file, tmp_path_factory) -> Path:
    """A run of two phases, with a price, samples and scores. Read only."""
    path = tmp_path_factory.mktemp("runs") / "priced"
    task = to_toml([{"name": "own", "files": [str(item_file)], "prompt": "{question}"}])
    changes = ("cost.gpu_usd_per_hour=36_000", "eval.prompts=['the ```mill']", f"eval.tasks={task}")
    train(path, "train.steps=8", PHASES, *changes)
    return path


def count(hub: Hub, event: str) -> int:
    return sum(happened == event for happened, _ in hub.writes.log)


def read_files(hub: Hub) -> dict[str, bytes]:
    """Return what the head of the repository holds, beside git's own file."""
    held = hub.repos[REPO].snapshots[hub.commit(REPO)].files
    return {name: Path(entry.file).read_bytes() for name, entry in held.items() if not name.startswith(".")}


def test_a_model_is_pushed_with_its_card_in_one_commit_and_loads(trainer, hub, priced):
    done = trainer.run("push", priced, REPO, *PUSH, expect=0)
    assert f"hf://{REPO}: all 7 files listed" in done.stdout
    assert hub.repos[REPO].kind == "models"
    assert (count(hub, "commit"), count(hub, "upload")) == (1, 1)
    files = read_files(hub)
    assert files.keys() == {*FILES, "tokenizer_config.json"}
    assert [*priced.parent.iterdir()] == [priced], "the export was kept nowhere"
    _, header, card = files["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(header)["license"] == "apache-2.0"
    parameters = sum(weight.numel() for weight in safetensors.torch.load(files["model.safetensors"]).values())
    for shown in (
        *(f"# mill\n\nA language model of {parameters:,} parameters", "2,048 tokens, in 8 steps"),
        *("| `prose` | 7", "| `val_loss` | ", "| `own_acc` | ", " ± ", "| item | steps | tokens |", "| `total` | 8 |"),
        *("| `first \\| look` | 4 | 1.02 K | ", "After 4 steps:\n\n````\nthe ```mill", "After 8 steps:"),
        "| `optimizer.lr` | `0.01` |",
    ):
        assert shown in card
    assert f"`{read_json(priced / 'run.json')['manifest_sha256']}`" in card
    # Pushed again, nothing is sent.
    hub.writes.log.clear()
    trainer.run("push", priced, f"hf://{REPO}", *PUSH, expect=0)
    assert hub.writes.log == []


def test_what_transformers_reads_from_the_hub_is_the_model(trainer, hub, priced, tmp_path, monkeypatch):
    trainer.run("push", priced, REPO, *PUSH, expect=0)
    model = transformers.AutoModelForCausalLM.from_pretrained(REPO, cache_dir=tmp_path / "cache")
    ids, trained = torch.arange(10)[None], load_model(priced)
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, trained.model(ids)[..., : model.config.vocab_size], atol=1e-4)


@pytest.mark.parametrize("place", ["/lfs-upload/", "/commit/", "/preupload/", "/repos/create", "/objects/batch"])
def test_a_hub_that_fails_half_way_shows_nothing_and_the_same_command_finishes(trainer, hub, priced, place):
    command = ("push", priced, REPO, *PUSH, "--give-up-after", "0.3")
    hub.faults.cut_uploads(place, times=None)
    done = trainer.run(*command, expect=2)
    assert "run the same command again" in done.stderr
    assert REPO not in hub.repos or not read_files(hub)
    hub.faults.off()
    trainer.run(*command, expect=0)
    assert len(read_files(hub)) == 7
    assert (count(hub, "commit"), count(hub, "upload")) == (1, 1)


def test_another_model_takes_its_place_only_if_told_and_never_half(trainer, hub, priced):
    first = ("push", priced, REPO, *PUSH, "--checkpoint", priced / "checkpoints/step-00000002")
    trainer.run(*first, expect=0)
    old = read_files(hub)
    assert "After 4 steps" not in old["README.md"].decode()
    refused = trainer.run("push", priced, REPO, *PUSH)
    assert (refused.returncode, read_files(hub)) == (2, old)
    assert f"hf://{REPO}: holds another model. Give another repository or branch, or --replace" in refused.stderr
    hub.faults.every(1, "reset", match="/commit/", most=1)
    trainer.run("push", priced, REPO, *PUSH, "--replace", expect=0)
    new = read_files(hub)
    assert (old["config.json"], len(new)) == (new["config.json"], 7)
    assert {old["model.safetensors"], old["README.md"]}.isdisjoint(new.values())
    assert count(hub, "commit") == 2


def test_a_dry_run_prints_the_card_and_asks_nothing(trainer, hub, priced, tmp_path):
    done = trainer.run("push", priced, REPO, *PUSH, "--dry-run", expect=0)
    assert done.stdout.startswith('---\nlicense: "apache-2.0"\n')
    assert (hub.requests, [*priced.parent.iterdir()]) == ([], [priced])
    mine = tmp_path / "mine.md"
    mine.write_text("---\nlicense: mit\n---\nMine.\n")
    trainer.run("push", priced, REPO, "--model", "--card", mine, expect=0)
    assert read_files(hub)["README.md"] == mine.read_bytes()
    forked = shutil.copytree(priced, tmp_path / "forked")
    record = forked / "run.json"
    began = record.read_text().replace('"start": null', '"start": "/gone/run/checkpoints/step-00000002"')
    record.write_text(began.replace('"weights": null', '"weights": "/gone/base"'))
    card = trainer.run("push", forked, REPO, *PUSH, "--dry-run", expect=0).stdout
    assert "Training began from step-00000002 of another run; its steps" in card
    assert "parameters, trained further, from the weights of base on" in card
    assert "/gone" not in card

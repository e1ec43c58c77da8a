"""The code of docs/trainers.md runs as it stands; what needs other trainers is run by tests/integrations."""

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE

from shards.format.writer import write_token_set
from tests.integrations.run_block import PAGE, read_blocks
from tests.support.token_sets import count_up

BLOCKS = read_blocks("##")
VOCAB_SIZE = 512


@pytest.mark.long
@pytest.mark.parametrize("title", BLOCKS)
def test_the_code_of_the_page_runs(title, tmp_path, monkeypatch):
    tokens = [count_up(size, vocab_size=VOCAB_SIZE) for size in (12_000, 13_000, 1_000)]
    tokenizer = Tokenizer(BPE({"<eos>": 0, **{f"{number:03}": number for number in range(1, VOCAB_SIZE)}}, []))
    tokenizer.add_special_tokens(["<eos>"])
    sizes = {"train": tokens[:2], "val": tokens[2:]}
    write_token_set(tmp_path / "out/demo", sizes, vocab_size=VOCAB_SIZE, tokenizer=tokenizer.to_str())
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for _ in range(2 if "saved" in BLOCKS[title] else 1):  # where it saves, resumed once
        exec(compile(BLOCKS[title], f"{PAGE.name}: {title}", "exec"), names)
    if title == "Our trainer from Python":
        assert names["result"].step == names["trained"].step == 4  # type: ignore[attr-defined]
        assert names["logits"].shape == (1, 1, VOCAB_SIZE)  # type: ignore[attr-defined]
        return
    assert names["part"]["input_ids"].shape == (8, 128)  # type: ignore[index]
    if "saved" in BLOCKS[title]:
        assert torch.load(tmp_path / "out/run.pt")["stream"]["samples"] == 160

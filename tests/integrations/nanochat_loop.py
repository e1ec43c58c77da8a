"""Train on `token_loader` of docs/trainers.md in the order of steps of nanochat's scripts/base_train.py.

A batch is taken ahead of its step; a save holds the state of the batch that is waiting; metadata are JSON.
Source: https://github.com/karpathy/nanochat/blob/00255c194d47108c3b50c11df19cbba089337ec3/scripts/base_train.py
"""

# pyright: basic
# ruff: noqa: F821
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

rank, ranks, steps = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), 20
if ranks > 1:
    dist.init_process_group("gloo")
meta = Path("out/meta.json")
saved = json.loads(meta.read_text()) if meta.exists() else {"step": 0, "dataloader_state_dict": None}
model = torch.nn.Sequential(torch.nn.Embedding(4096, 16), torch.nn.Linear(16, 4096))
loader = token_loader(8 // ranks, 128, "train", device="cpu", resume_state_dict=saved["dataloader_state_dict"])
x, y, state = next(loader)
for step in range(saved["step"], steps):
    if rank == 0 and step % 3 == 0:
        meta.with_suffix(".new").write_text(json.dumps({"step": step, "dataloader_state_dict": state}))
        meta.with_suffix(".new").replace(meta)
    torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
    if ranks > 1:
        dist.barrier()  # as the gradients' all-reduce: no rank is a step ahead
    x, y, state = next(loader)
    assert (state["epoch"], state["samples"]) == (1, 8 * (step + 1))

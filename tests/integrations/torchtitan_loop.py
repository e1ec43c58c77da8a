"""Train on `TokenLoader` of docs/trainers.md, built as torchtitan's trainer does, saved as its checkpoints."""

# pyright: basic
# ruff: noqa: F821
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
loader = TokenLoader.Config().build(
    dp_world_size=ranks,
    dp_rank=rank,
    tokenizer=None,
    seq_len=128,
    local_batch_size=8 // ranks,
    snapshot_every_n_steps=3,
)
model = torch.nn.Sequential(torch.nn.Embedding(4096, 16), torch.nn.Linear(16, 4096))
pointer = Path("out/latest")
if pointer.exists():
    dcp.load({"model": model, "dataloader": loader}, checkpoint_id=pointer.read_text())
batches = iter(loader)
for step in range(loader.state_dict()["samples"] // 8 + 1, 21):
    inputs, labels = next(batches)
    torch.nn.functional.cross_entropy(model(inputs["input"]).flatten(0, 1), labels.flatten()).backward()
    dist.barrier()  # as the gradients' all-reduce: no rank is a step ahead
    if step % 3 == 0:
        dcp.save({"model": model, "dataloader": loader}, checkpoint_id=f"out/step-{step}")
        if rank == 0:
            Path("out/latest.new").write_text(f"out/step-{step}")
            os.replace("out/latest.new", pointer)
dist.destroy_process_group()

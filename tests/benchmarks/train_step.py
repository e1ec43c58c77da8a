"""Compare a training step on the CPU with a plain loop over the same model, and with transformers' Trainer.

All three train a LLaMA of one size, in fp32, with fused AdamW and clipped gradients, on windows of the same set. Ours
reads the compressed shards as it goes; the others are handed their windows in memory. They take turns, a few steps
each, and the first steps of each turn are left out. `tokenmill fit --measure` has the same steps.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shards.terminal.reporter import no_note
from tests.benchmarks.build import write_set
from tests.benchmarks.harness import Figures, median

WARM_UP = 2
"""Steps of each turn that are not timed: threads start, shards are opened, memory is taken."""

RECIPE = """
name = "bench"
[model]
kind = "llama"
hidden_size = 256
num_hidden_layers = 4
num_attention_heads = 8
num_key_value_heads = 4
intermediate_size = 768
max_position_embeddings = 128
tie_word_embeddings = true
[train]
seq_len = 128
global_batch = 8
micro_batch = 8
steps = 100_000
precision = "fp32"
device = "cpu"
[optimizer]
lr = 1e-3
"""


def bench_train_step(work: Path, quick: bool) -> Figures:
    """Time steps of the three in turns: medians, and ratios above 1 where ours is faster.

    `loader_share` is the share of our steps' time that waits for data, and `first_wait_ms` the wait for the first
    shard, which no turn but the first has.
    """
    # As the command does; see trainer.commands.train. Without it turns that share cores with others are not comparable.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    shards_path = write_set(work)

    import torch

    from tests.benchmarks.their_steps import build_theirs, take_their_steps
    from trainer.commands.timed_steps import take_our_steps
    from trainer.recipe import load_train_recipe
    from trainer.session import open_session
    from trainer.train.step import open_training_windows

    (work / "bench-train.toml").write_text(RECIPE)
    recipe = load_train_recipe(work / "bench-train.toml")
    rounds, steps = (2, 5) if quick else (5, 10)
    times: dict[str, list[float]] = {"ours": [], "plain": [], "transformers": []}
    waits: list[float] = []
    with tempfile.TemporaryDirectory(dir=work) as folder:
        session = open_session(recipe, shards_path, Path(folder) / "run", say=no_note)
        try:
            all_windows = rounds * steps * recipe.train.global_batch
            with open_training_windows(session.shard_set, recipe.train, stop=all_windows) as memory:
                batch = memory.read(range(steps * recipe.train.global_batch))
            windows = torch.cat((batch["input_ids"], batch["labels"][:, -1:]), dim=1)
            plain = _PlainLoop(recipe, session.shard_set.vocab_size)
            theirs = build_theirs(recipe, session.shard_set.vocab_size)
            marks: list[float] = []

            def mark() -> None:
                marks.append(time.perf_counter())

            def end_turn(name: str) -> None:
                times[name] += [after - before for before, after in itertools.pairwise(marks[WARM_UP - 1 :])]
                marks.clear()

            with open_training_windows(session.shard_set, recipe.train, stop=all_windows) as loader:
                for _ in range(rounds):
                    waits += [record["data_wait_ms"] for record in take_our_steps(session, loader, steps, mark)]
                    end_turn("ours")
                    times["plain"] += plain.take_steps(windows.split(recipe.train.global_batch))[WARM_UP:]
                    take_their_steps(theirs, recipe, batch, mark)
                    end_turn("transformers")
            parameters = sum(parameter.numel() for parameter in session.model.parameters())
        finally:
            session.close()
    seconds = {name: median(values) for name, values in times.items()}
    timed_waits = [wait for index, wait in enumerate(waits) if index % steps >= WARM_UP]
    return {
        "parameters": parameters,
        "tokens": recipe.train.global_batch * recipe.train.seq_len,
        "threads": torch.get_num_threads(),
        **{f"{name}_s": value for name, value in seconds.items()},
        "plain_ratio": seconds["plain"] / seconds["ours"],
        "transformers_ratio": seconds["transformers"] / seconds["ours"],
        "loader_share": sum(timed_waits) / 1000 / sum(times["ours"]),
        "first_wait_ms": waits[0],
    }


class _PlainLoop:
    """The loop that one would write first: the same model, batches in memory, nothing recorded but the loss."""

    def __init__(self, recipe: Any, vocab_size: int):
        import torch

        from trainer.model.decoder import build_model

        self.model = build_model(recipe.model, vocab_size, seed=recipe.train.seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)

    def take_steps(self, batches: Sequence[Any]) -> list[float]:
        """Return the seconds of each step."""
        import torch

        seconds = []
        for windows in batches:
            began = time.perf_counter()
            loss = self.model(windows[:, :-1], windows[:, 1:])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            loss.item()
            seconds.append(time.perf_counter() - began)
        return seconds

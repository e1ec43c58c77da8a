"""From a shard set to a model: recipe, loader, decoder, training loop, checkpoints, sampling.

    tokenmill train recipes/train/demo.toml --shards out/demo --run out/run
    tokenmill sample out/run --prompt "The "

Reads shard sets through `shards`; knows nothing of how they were built. Importing it has no side effects: torch,
tokenizers and pydantic are imported by the commands that need them.
"""

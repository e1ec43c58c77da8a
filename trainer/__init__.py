"""From a shard set to a model: recipe, loader, decoder, training loop, checkpoints, sampling.

    import trainer
    result = trainer.train_model("demo", shards="out/demo", run="out/demo-run")
    trained = trainer.load_model("out/demo-run")

Reads shard sets through `shards`; knows nothing of how they were built. Names are loaded when first used, so that
`tokenmill --help` need not wait for torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.train.train_model import TrainingResult, train_model
    from trainer.weights.trained_model import load_model

__all__ = ["TrainingResult", "load_model", "train_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trainer' has no attribute {name!r}")
    from trainer.train import train_model
    from trainer.weights import trained_model

    return getattr(trained_model if name == "load_model" else train_model, name)


def __dir__() -> list[str]:
    return __all__

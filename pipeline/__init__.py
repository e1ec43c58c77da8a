"""Recipe to shard set: exact token mixes, byte-identical however it is run.

    import pipeline
    plan = pipeline.plan_set("demo")
    result = pipeline.build_set("demo", out="out/demo")

Names are loaded when first used, so that `tokenmill --help` need not wait for pyarrow.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.builder.build import SetProblemsError, build_set, load_recipe
    from pipeline.plan.plan import plan_set

__all__ = ["SetProblemsError", "build_set", "load_recipe", "plan_set"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    from pipeline.builder import build
    from pipeline.plan import plan

    return getattr(plan if name == "plan_set" else build, name)


def __dir__() -> list[str]:
    return __all__

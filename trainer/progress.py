"""What the user sees of a run on stderr, beside the bar of `shards.display`."""

from __future__ import annotations

import sys
from typing import Any


def say(message: str) -> None:
    """Print a line for the user on stderr; above the bar when there is one."""
    print(message, file=sys.stderr, flush=True)


def describe_step(record: dict[str, Any]) -> str:
    """Return a step's metrics in a few words."""
    words = [f"loss {record['loss']:.3f}", f"lr {record['lr']:.2e}", f"{record['tokens_per_s']:,.0f} tokens/s"]
    words += [f"MFU {record['mfu']:.1%}"] if record["mfu"] is not None else []
    words += [f"${record['usd']:,.2f}"] if record["usd"] else []
    return "  ".join(words)

"""A timer of a task's steps, which gives the stage figures in build.json."""

from __future__ import annotations

import time


class Timer:
    """Adds the time since the last lap to a name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Count the time since the last lap, or since creation, as `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

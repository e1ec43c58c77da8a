"""A timer of a task's steps, which gives the stage figures in build.json."""

from __future__ import annotations

import time


class Timer:
    """Adds the time since the last lap to a name: by the clock, and of the processor.

    The second is what this process has used, all its threads: on a machine that does nothing else, one task takes no
    more of it than of the first on each core.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.core_seconds: dict[str, float] = {}
        self._last = time.perf_counter(), time.process_time()

    def lap(self, name: str) -> None:
        """Count the time since the last lap, or since creation, as `name`."""
        now = time.perf_counter(), time.process_time()
        for sums, start, end in zip((self.seconds, self.core_seconds), self._last, now, strict=True):
            sums[name] = sums.get(name, 0.0) + end - start
        self._last = now

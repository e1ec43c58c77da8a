"""An executor that runs calls as another host would get them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pipeline.engine.executors import Advance, LocalExecutor
from pipeline.engine.receipts import WorkFileDamagedError
from pipeline.engine.tasks import Call, call_from_json, call_to_json


class JsonExecutor(LocalExecutor):
    """Runs what is left of a call after it has been JSON."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sent: dict[str, list[str]] = {}

    def run(self, calls: Sequence[Call], advance: Advance) -> list[WorkFileDamagedError]:
        texts = [call_to_json(call) for call in calls]
        read = [call_from_json(text) for text in texts]
        assert [call_to_json(call) for call in read] == texts
        for text in texts:
            self.sent.setdefault(json.loads(text)["function"].partition(":")[2], []).append(text)
        return super().run(read, advance)

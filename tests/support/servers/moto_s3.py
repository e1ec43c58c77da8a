"""moto's server, with creation under a condition as S3 has it: one of many creators wins.

moto checks that an object is absent and then writes it; a request that is answered in between wins, too. Here no two
requests write objects at the same time. Flags are those of `python -m moto.server`.
"""

import functools
import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

WRITERS = ("put_object", "_key_response_post")
"""The methods that check the condition and write: of a whole object, and of one sent in parts."""


def take_turns(name: str, turn: threading.RLock) -> None:
    """Let a method of moto's answers run in one thread at a time."""
    method = getattr(S3Response, name)

    @functools.wraps(method)
    def locked(*arguments: Any, **options: Any) -> Any:
        with turn:
            return method(*arguments, **options)

    setattr(S3Response, name, locked)


if __name__ == "__main__":
    turn = threading.RLock()
    for name in WRITERS:
        take_turns(name, turn)
    main()

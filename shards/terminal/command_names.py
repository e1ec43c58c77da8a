"""The words that called this program, for usage lines and hints: `tokenmill build` or `python -m pipeline build`."""

from __future__ import annotations

import os
import sys

RENAMED = {
    ("trainer", "export"): "export-model",
    ("trainer", "keys"): "train-keys",
    ("trainer", "trace"): "trace-step",
}
"""Commands with another name in `tokenmill`, because another package has a command of the same name too."""


def called_as(package: str, command: str = "") -> str:
    """Return the words that call a command of a package, in the form in which this process was called.

    `python -m trainer trace` if a package was run as a module, else `tokenmill trace-step`.
    """
    folder, file = os.path.split(sys.argv[0])
    if file == "__main__.py" and os.path.basename(folder) in ("pipeline", "shards", "trainer"):
        words = ["python", "-m", package, command]
    else:
        words = ["tokenmill", RENAMED.get((package, command), command)]
    return " ".join(word for word in words if word)

"""Builds from a Hub on loopback: the command with its environment."""

import json
import os
from pathlib import Path
from typing import Any

from tests.support.builds import run_program
from tests.support.servers.hub import Hub

ROOT = Path(__file__).parents[2]


class Command:
    """The program against a Hub, with a home of its own."""

    def __init__(self, hub: Hub, folder: Path):
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TOKENMILL_"))},
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hf"),
        }
        self.network: dict[str, object] = {"timeout_s": 3}
        """The settings for reading over a network, which flags may change."""

    def __call__(self, *arguments: str | Path, expect: int = 0, cwd: Path = ROOT, **environment: str) -> str:
        """Run a command to its end; return its stdout, or its stderr if it is expected to fail."""
        variables = self.environment | {"TOKENMILL_NETWORK": json.dumps(self.network)}
        done = run_program(*arguments, cwd=cwd, env=variables | environment, expect=expect)
        assert "Traceback" not in done.stderr
        return done.stderr if expect else done.stdout

    def build(self, recipe: Path, name: str, *arguments: str | Path, **options: Any) -> Path:
        """Build into a folder of this name and return it."""
        self("build", recipe, "--out", self.folder / name, "--workers", "1", "--json", *arguments, **options)
        return self.folder / name

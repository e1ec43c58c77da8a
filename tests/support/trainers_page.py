"""The code of docs/trainers.md: the first block of each section, by its title."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

PAGE = Path(__file__).parents[2] / "docs/trainers.md"


def read_blocks(level: Literal["##", "###"]) -> dict[str, str]:
    """Return the first Python block of each section with a heading of this level."""
    pattern = rf"^{level} ([^\n]+)\n(?:(?!##)[^\n]*\n)*?```python\n(.*?)^```"
    return dict(re.findall(pattern, PAGE.read_text(), re.M | re.S))

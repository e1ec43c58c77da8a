"""Progress: a line that fits the terminal, lines elsewhere, and only what is known."""

import re
import sys
import time

import pytest

from shards.terminal import progress
from shards.terminal.progress import Meter, show_progress
from tests.support.builds import run_in_terminal

SCRIPT = """
import time
from shards.terminal.display import say
from shards.terminal.progress import show_progress
with show_progress("tiny[red]", unit="steps") as report:
    for step in range(5):
        report(900 + step, 4_000, ["loss 3.212 [b]", "lr 3.00e-04", "12,345 tokens/s"])
        time.sleep(0.3)
        if step == 2:
            say("a line")
"""


@pytest.mark.parametrize("columns", [20, 120])
def test_a_line_fits_its_terminal(columns):
    shown = run_in_terminal([sys.executable, "-c", SCRIPT], columns=columns)
    assert "a line" in re.split(r"[\r\n]", shown)
    frames = [frame.strip() for frame in re.split(r"[\r\n]+", shown) if frame.strip() and frame != "a line"]
    whole = r"tiny\[red\]: 22%, about \d+ (s|min|h) left, 90\d of 4,000 steps, loss 3\.212 \[b\], lr .* tokens/s"
    for frame in frames[1:]:
        assert len(frame) <= columns
        assert re.fullmatch(whole, frame) or (columns == 20 and frame.startswith("tiny[red]: 22%,")), frame
    assert len(frames) > 2


def test_lines_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "MOST_LINE_SECONDS", 0.0)
    with show_progress("tiny\x1b[31m", unit="steps", before=900) as report:
        report.started -= 100
        report(1_000, 4_000, ["loss 3.2\x1b"])
        report(3_999, 4_000)
        report(4_000, 4_000)
    with show_progress("another rank", show=False) as report:
        report(1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "tiny\\x1b[31m: 25%, about 50 min left, 1,000 of 4,000 steps, loss 3.2\\x1b",
        "tiny\\x1b[31m: 99%, about 1 s left, 3,999 of 4,000 steps",
        "tiny\\x1b[31m: 100%, 4,000 of 4,000 steps",
    ]


@pytest.mark.parametrize(
    ("done", "total", "expected"),
    [
        (0, 0, ""),
        (0, 1_000_000, "0%, 0 B of 1 MB"),
        (999_999, 1_000_000, "99%, about 1 s left, 1 MB of 1 MB, 100 kB/s"),
        (1_000_000, 1_000_000, "100%, 1 MB of 1 MB, 100 kB/s"),
    ],
)
def test_only_what_is_known_is_said(done, total, expected, monkeypatch):
    meter = Meter("encode", "bytes", started=0.0)
    monkeypatch.setattr(time, "monotonic", lambda: 10.0)
    meter(done, total)
    assert meter.line() == f"encode: {expected}"

"""Text that does not decode is malformed; records without text have a limit; an absent separator is told."""

# pyright: basic

from pathlib import Path

import pytest

from pipeline.clean.documents import DocumentStream
from pipeline.clean.reasons import Dropped
from tests.support.reading import files_source, list_spans_of


def test_a_share_that_an_alarm_names_is_enough():
    barely = Dropped(19_998_001, 20_000_001)  # above 0.9999
    assert not [*barely.refuse("a", "", barely.enough(), change="")]


DOCUMENTS = [f"Document {n}\nwith two lines about number {n * n}" for n in range(300)]
CRLF = "\n\n".join(DOCUMENTS).replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "separator", "found"),
    [
        (CRLF, "\n\n", [r'a.txt (has "\r\n\r\n")']),
        ("\n\n".join(DOCUMENTS), "\r\n\r\n", [r'a.txt (has "\n\n")']),
        ("a\r\n<end>\r\nb", "\n<end>\n", [r'a.txt (has "\r\n<end>\r\n")']),
        ("long text " * 9000, "\n\n", ["a.txt"]),
        ("one short document", "\n\n", []),
        (CRLF, "\r\n\r\n", []),
        ("long text " * 9000 + "\n\n", "\n\n", []),
        ("", "\n\n", []),
    ],
)
def test_files_without_the_separator_are_told(text: str, separator: str, found: list[str], tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(text.encode() or b"\n\n")
    recipe = files_source(tmp_path / "a.txt", separator=separator)
    stream = DocumentStream(recipe, list_spans_of(recipe))
    assert sum(len(documents) for _, documents in stream) >= len(found)
    assert stream.tally.undivided == found

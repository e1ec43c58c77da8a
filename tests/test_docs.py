"""The pages: what they name exists, what they link to is there, and the list of folders is the tree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("pipeline", "shards", "trainer", "tokenmill")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README_LINES = 90


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    broken: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in _anchors(linked)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    """Every path in backticks that begins with a folder of the tree; capitals and `*` stand for names to choose."""
    folders = "|".join((*PACKAGES, "tests", "docs", "recipes"))
    paths = re.findall(rf"`((?:{folders})/[\w./*-]*)`", page.read_text(encoding="utf-8"))
    missing = [path for path in paths if not re.search(r"/[A-Z]+\.py$", path) and not list(ROOT.glob(path))]
    assert missing == []


def test_every_module_is_in_the_list_of_folders() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    listing = text[text.index("## Folders") : text.index("## One home")]
    listed: set[str] = set()
    for section in re.split(r"^(?=\*\*`)", listing, flags=re.MULTILINE)[1:]:
        folder = section[3 : section.index("/`**")]
        listed |= {f"{folder}/{name}" for name in re.findall(r"^- `(\w+\.py)`", section, re.MULTILINE)}
    modules = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    expected = {name for name in modules if not name.endswith(("__init__.py", "__main__.py"))}
    assert listed - {"tokenmill/__main__.py"} == expected

"""The pages: what they name exists, what they link to is there, and every module says what it does."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.support.modules import list_modules

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("pipeline", "shards", "trainer", "tokenmill")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("docs", "recipes", *PACKAGES)
WITH_LINKS = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
README_LINES = 100


def _prose(page: Path) -> str:
    """Return a page without its blocks of code, whose comments would look like headings."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them: equal headings are numbered from the second."""
    seen: Counter[str] = Counter()
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w -]", "", words).strip().replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return anchors


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("page", WITH_LINKS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    broken: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in _anchors(linked)):
            broken.append(target)
    assert broken == []


def test_every_page_is_looked_at() -> None:
    names = {page.relative_to(ROOT).as_posix() for page in WITH_LINKS}
    assert {"README.md", "CHANGELOG.md", "docs/guide.md", "recipes/README.md", "shards/FORMAT.md"} <= names


def test_the_guide_has_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    section = (ROOT / "docs/guide.md").read_text(encoding="utf-8").partition("### Extras")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == extras.keys() - {"dev"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    """Every path in backticks that begins with a folder of the tree; capitals and `*` stand for names to choose."""
    folders = "|".join((*PACKAGES, "tests", "docs", "recipes"))
    paths = re.findall(rf"`((?:{folders})/[\w./*-]*)`", page.read_text(encoding="utf-8"))
    missing = [path for path in paths if not re.search(r"/[A-Z]+\.py$", path) and not list(ROOT.glob(path))]
    assert missing == []


def test_every_module_says_what_it_does() -> None:
    silent = [path for path, line in list_modules() if not line]
    assert silent == []

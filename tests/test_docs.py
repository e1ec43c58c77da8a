"""The pages: what they name exists, what they link to is there, and every module says what it does."""

import ast
import importlib
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from shards.terminal.program import command_parser
from tests.support.modules import PACKAGES, ROOT, list_modules
from tests.support.recipes import write_lines
from tokenmill.__main__ import COMMANDS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("docs", "recipes", *PACKAGES)
WITH_LINKS = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])
WORDS = {
    "CONTRIBUTING.md": 600,
    "README.md": 900,
    "docs/architecture.md": 1_850,
    "docs/chat.md": 1_450,
    "docs/cleaning.md": 2_350,
    "docs/clusters.md": 1_500,
    "docs/data.md": 1_265,
    "docs/experiments.md": 2_500,
    "docs/glossary.md": 920,
    "docs/guide.md": 1_625,
    "docs/keys.md": 6_900,
    "docs/performance.md": 1_000,
    "docs/projects.md": 1_300,
    "docs/promises.md": 800,
    "docs/tokenizers.md": 700,
    "docs/trainers.md": 1_900,
    "recipes/README.md": 520,
    "shards/FORMAT.md": 5_300,
}
"""The most words of a page, as `wc -w` counts them: what is more goes to another page or to docs/lab."""
BLOCKS = [
    pytest.param(page, language, code, id=f"{page.relative_to(ROOT)}-{number}")
    for page in WITH_LINKS
    if page.name != "CHANGELOG.md" and page.parent.name != "lab"
    for number, (language, code) in enumerate(
        re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
]


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


@pytest.mark.parametrize("page", WITH_LINKS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_anchors_lead_somewhere(page: Path):
    broken: list[str] = []
    for target in re.findall(r"(?:\]\(|src=\")([^)\s\"]+)[)\"]", _prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in _anchors(linked)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", WORDS)
def test_a_page_is_no_longer_than_its_question_needs(page: str):
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= WORDS[page]


@pytest.mark.parametrize(("page", "language", "code"), BLOCKS)
def test_the_code_of_the_pages_is_code(page: Path, language: str, code: str):
    """TOML and Python parse, and each command is one with its flags; long tests run recipes, loops and the tour."""
    if language == "toml":
        tomllib.loads(code)
    elif language == "python":
        compile(code, page.name, "exec")
    elif language == "json":
        json.loads(f"{{{code}}}")
    else:
        # The last two show files, and what commands print.
        assert language in {"diff", "sh", "sql", "yaml", "", "console"}
    commands = code.replace("\\\n", " ") if language == "sh" else "\n".join(re.findall(r"^\$ (.*)", code, re.MULTILINE))
    for line in re.findall(r"(?:^|[/ ])tokenmill ([a-z].*)", commands, re.MULTILINE):
        name, *arguments = itertools.takewhile(lambda word: word != "|", shlex.split(line, comments=True))
        command_parser(name, importlib.import_module(COMMANDS[name][0])).parse_args(arguments)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_tour_of_the_guide_runs(tmp_path: Path):
    """As written but for a shorter training; on the code of this Python, as text files and JSON lines."""
    notes, posts = tmp_path / "my-files/notes", tmp_path / "my-files/posts.jsonl"
    notes.mkdir(parents=True)
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(json.__file__).parents[1].glob("*.py"))]
    for number, text in enumerate(texts[::2]):
        (notes / f"{number}.md").write_text(text, encoding="utf-8")
    write_lines(posts, ({"id": 1, "body": text} for text in texts[1::2]))
    tour = re.findall(
        r"^```sh\n(.*?)^```", (ROOT / "docs/guide.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )[0].replace("--write model.toml", "--write model.toml --hours 0.003 --steps 2")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", tour], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "wrote recipe.toml" in done.stdout
    assert "wrote model.toml" in done.stdout
    assert list(tmp_path.glob("out/mine-run/checkpoints/step-*"))


def test_the_charts_of_the_readme_have_the_figures_of_the_page():
    light, dark = ((ROOT / f"docs/speed-{kind}.svg").read_text(encoding="utf-8") for kind in ("light", "dark"))
    title = re.findall("<title.*>(.*)</title>", light)
    assert title == re.findall("<title.*>(.*)</title>", dark)
    figures = set(re.findall(r"\d[\d.]*", title[0]))
    assert figures <= set(re.findall(r"\d[\d.]*", (ROOT / "docs/performance.md").read_text(encoding="utf-8")))


def test_the_guide_has_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    section = (ROOT / "docs/guide.md").read_text(encoding="utf-8").partition("### Extras")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == extras.keys() - {"dev"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page: Path):
    """Every path in backticks that begins with a folder of the tree; capitals and `*` stand for names to choose."""
    folders = "|".join((*PACKAGES, "tests", "docs", "recipes"))
    paths = re.findall(rf"`((?:{folders})/[\w./*-]*)`", page.read_text(encoding="utf-8"))
    missing = [path for path in paths if not re.search(r"/[A-Z]+\.py$", path) and not list(ROOT.glob(path))]
    assert missing == []


def test_every_module_says_what_it_does():
    silent = [path for path, tree in list_modules() if not ast.get_docstring(tree)]
    assert silent == []

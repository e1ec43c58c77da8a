"""The project as a whole: its import names, commands, recipes, pinned versions, and what its files must not say."""

import graphlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from shards.errors import EXTRAS
from tests.mutants.run_mutants import list_mutants
from tests.support.modules import PACKAGES, ROOT
from tests.support.recipes import source, write_recipe
from tokenmill import __main__ as tokenmill

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEAVY = "torch numpy pyarrow pydantic rich datasets datatrove ray awkward tokenizers zstandard"
MOST_ENTRIES = 15
ASKED_FOR_BY_PYTHON = {"__init__.py", "__main__.py", "py.typed"}

# Put together from pieces so that this file does not hold what it forbids.
FORBIDDEN = {
    "a package registry": r"pypi\."
    + r"org|files\.python"
    + r"hosted|(extra-)?index-"
    + r"url|https?://\S+/sim"
    + r"ple\b",
    "this workplace": r"(?<![\w.])/wo" + r"rk/|\.\./sha" + r"red",
    "unfinished work": r"\bTO" + r"DO\b|\bFIX" + r"ME\b|\bX" + r"XX\b",
    "an issue's number": r"(?i:\bissue) #?\d",
}
CORPORA_DEFAULT = "../sha" + "red/corpora"


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def _tracked_text() -> Iterator[tuple[str, str]]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"not a git checkout: {done.stderr.strip()}")
    for name in filter(None, done.stdout.split("\0")):
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        if b"\0" not in content:
            yield name, content.decode("utf-8")


def test_no_other_distribution_brings_our_names():
    ours = {*PACKAGES, *(f"{name}.py" for name in PACKAGES)}
    owners = {
        distribution.metadata["Name"]
        for distribution in importlib.metadata.distributions()
        if any(file.parts[0] in ours for file in distribution.files or [])
    }
    assert owners <= {"tokenmill"}


def test_help_names_each_command_and_loads_nothing_heavy():
    code = (
        "import sys; from tokenmill.__main__ import COMMANDS, main\n"
        "for name in COMMANDS:\n"
        "    assert main([name, '--help']) == main([name, '--help-all']) == 0\n"
        f"    print('loaded:', sorted(set({HEAVY.split()}) & set(sys.modules)))"
    )
    done = _python("-c", code)
    for name in tokenmill.COMMANDS:
        assert done.stdout.count(f"usage: tokenmill {name} ") == 2
    assert done.stdout.count("\n  --connections N") == 2, "of `plan` and `build`, by --help-all alone"
    assert done.stdout.count("loaded: []\n") == len(tokenmill.COMMANDS), done.stdout[-500:] + done.stderr


def test_a_build_starts_without_what_its_workers_alone_need():
    heavy = ["pyarrow.compute", "awkward", "gigatoken", "tokenizers"]
    done = _python("-c", f"import sys, pipeline.builder.build; print(sorted(set({heavy}) & set(sys.modules)))")
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_a_build_does_not_load_pandas(tmp_path: Path):
    """Arrow does for a list, and for an array that becomes numpy's: 0.4 s in each worker."""
    texts = [" ".join(str(number * word) for word in range(500)) for number in range(1, 1001)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    clean = {"near_duplicates": {"max_dropped": 1.0}}
    recipe = write_recipe(tmp_path / "r.toml", source("a", "a.parquet"), tokenizer={"vocab_size": 300}, clean=clean)
    code = f"import pipeline; pipeline.build_set({str(recipe)!r}, out={str(tmp_path / 'set')!r}, workers=1)"
    done = _python("-c", f"import sys; {code}; print('pandas' in sys.modules)")
    assert done.stdout == "False\n", done.stdout + done.stderr


def test_every_module_of_commands_is_a_command_that_the_help_lists():
    for name, (module, summary) in tokenmill.COMMANDS.items():
        assert re.search(rf"\n  {name} +{re.escape(summary)}\n", tokenmill.help_text())
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file()
    folders = [ROOT / "pipeline/cli", ROOT / "shards/cli", ROOT / "tokenmill/commands", ROOT / "trainer/commands"]
    defined = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in folders
        for path in folder.glob("*.py")
        if "\ndef run(" in path.read_text(encoding="utf-8")
    }
    assert defined == {module for module, _ in tokenmill.COMMANDS.values()}


def test_every_recipe_is_explained():
    text = (ROOT / "recipes/README.md").read_text(encoding="utf-8")
    missing = [
        path.name for path in (ROOT / "recipes").glob("*/*.toml") if f"{path.parent.name}/{path.name}" not in text
    ]
    assert missing == []


@pytest.mark.parametrize("what", FORBIDDEN)
def test_tracked_files_do_not_name(what: str):
    found: list[str] = []
    for name, text in _tracked_text():
        # Where tests and benchmarks look for the corpora is the one exception.
        text = text.replace(CORPORA_DEFAULT, "") if name.startswith("tests/") else text
        found += [f"{name}: {match[0]}" for match in re.finditer(FORBIDDEN[what], text)]
    assert found == []


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line.strip() and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), "every line of constraints.txt is name==version"
    return {canonicalize_name(name): version.strip() for name, version in pairs}


def _requirements(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for line in importlib.metadata.requires(name) or []:
        requirement = Requirement(line)
        environments: list[dict[str, str]] = [{"extra": extra} for extra in extras | {""}]
        if requirement.marker is None or any(requirement.marker.evaluate(item) for item in environments):
            yield requirement


def test_constraints_pin_every_dependency():
    """Walk what we require, and what that requires. An exact requirement of a pinned package is pinned by it."""
    pins = _pins()
    assert pins["torch"] == "2.13.0"
    pending, seen = (
        [Requirement("tokenmill[clean,datatrove,experiments,hub,ray,train,dev]")],
        set[tuple[str, frozenset[str]]](),
    )
    wrong: list[str] = []
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        installed = importlib.metadata.version(name).split("+")[0]  # "2.13.0+cpu" is built from 2.13.0
        exact = any(specifier.operator == "==" for specifier in requirement.specifier)
        if name != "tokenmill" and pins.get(name) != installed and not exact:
            wrong.append(f"{name}: installed {installed}, pinned {pins.get(name)}")
        pending += _requirements(name, extras)
    assert wrong == []


def test_changelog_begins_with_this_version():
    version = PROJECT["version"]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == version
    assert importlib.metadata.version("tokenmill") == version


def _third_party_imports(package: str) -> set[str]:
    """Return the names of the libraries that the modules of a package import, at the top or late."""
    graph = grimp.build_graph(package, include_external_packages=True, cache_dir=None)
    names = {module for module in graph.modules if graph.is_module_squashed(module)}
    return names - set(sys.stdlib_module_names) - set(PACKAGES)


def test_no_modules_import_each_other_in_a_circle():
    """Late imports and those for type checkers count too."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}
    assert len(imports) > 150
    graphlib.TopologicalSorter(imports).prepare()  # the CycleError names the modules


def test_no_folder_is_crowded():
    tracked = [Path(name) for name, _ in _tracked_text() if name.startswith(tuple(f"{name}/" for name in PACKAGES))]
    entries: dict[Path, set[str]] = {}
    for path in tracked:
        for folder in path.parents[:-1]:
            entries.setdefault(folder, set()).add(path.relative_to(folder).parts[0])
    counts = {str(folder): len(names - ASKED_FOR_BY_PYTHON) for folder, names in entries.items()}
    crowded = {folder: count for folder, count in counts.items() if count > MOST_ENTRIES}
    assert crowded == {}


def test_the_extra_all_is_every_extra_of_a_user():
    extras = PROJECT["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.name == "tokenmill"
    assert everything.extras == extras.keys() - {"all", "dev"}


def test_every_library_is_a_dependency_or_comes_with_an_extra():
    def modules_of(requirements: list[str]) -> set[str]:
        return {canonicalize_name(Requirement(line).name).replace("-", "_") for line in requirements}

    extras = {extra: modules_of(lines) for extra, lines in PROJECT["optional-dependencies"].items()}
    always = modules_of(PROJECT["dependencies"])
    always |= {"yaml", "pydantic_core", "typing_extensions", "httpx2"}  # PyYAML; with pydantic; with huggingface_hub
    extras["clean"].add("fasttext")  # of fasttext-predict
    assert all(package in extras[extra] for package, extra in EXTRAS.items())
    assert _third_party_imports("shards") <= always | extras["torch"]  # in shards.torch alone: lint-imports checks it
    of_pipeline = always.union(*(extras[extra] for extra in ("clean", "datatrove", "html", "hub", "ray")))
    assert _third_party_imports("pipeline") <= of_pipeline
    of_trainer = always.union(extras["train"], extras["gguf"], {"transformers", "accelerate"})
    assert _third_party_imports("trainer") <= of_trainer


def test_every_mutant_still_finds_its_place():
    for mutant in list_mutants():
        assert mutant.broken(), mutant.name
        tests = [test.partition("::") for test in mutant.tests if test.startswith("tests/")]
        assert tests, mutant.name
        for file, _, name in tests:
            assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8"), mutant.name

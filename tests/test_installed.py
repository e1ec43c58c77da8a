"""The wheel, installed in an environment of its own and used from folders that are not the checkout."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from tests.support.builds import read_json
from tests.support.recipes import write_small_recipe

ROOT = Path(__file__).resolve().parents[1]


class Installed:
    """An environment with the wheel: `site` is its site-packages."""

    def __init__(self, folder: Path):
        self.bin = folder / "bin"
        self.site = next((folder / "lib").glob("python*/site-packages"))

    def run(self, cwd: Path, program: str, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in a folder, and check its exit status."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def install(wheel: Path, folder: Path) -> Installed:
    """Install a wheel into a new environment; what it depends on is taken from this one."""
    venv.create(folder, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(folder), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    installed = Installed(folder)
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (installed.site / "libraries.pth").write_text("\n".join(libraries), encoding="utf-8")
    return installed


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return an environment with the wheel. Read only."""
    return install(wheel, tmp_path_factory.mktemp("environment") / "env")


@pytest.fixture
def own(wheel: Path, tmp_path: Path) -> Installed:
    """Return an environment with the wheel, to be changed."""
    return install(wheel, tmp_path / "env")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A person's folder, with a recipe and its files."""
    write_small_recipe(tmp_path)
    return tmp_path


def put_foreign_modules(folder: Path) -> None:
    """Put files into a folder that fail when they are imported, and leave a mark."""
    loud = "import pathlib, sys\npathlib.Path(__file__).with_suffix('.imported').touch()\nsys.exit('hijacked')\n"
    (folder / "pipeline").mkdir()
    for name in ("pipeline/__init__.py", "shards.py", "trainer.py", "tokenmill.py", "numpy.py", "random.py"):
        (folder / name).write_text(loud)


def test_commands_run_beside_modules_of_the_same_names(installed: Installed, project: Path):
    put_foreign_modules(project)
    installed.run(project, "tokenmill", "build", "recipe.toml", "--out", "out/small", "--workers", "2")
    installed.run(project, "tokenmill", "build", "recipe.toml", "--out", "out/one", "--workers", "1")
    installed.run(project, "tokenmill", "validate", "out/small")
    installed.run(project, "tokenmill", "audit", "out/small", "--workers", "2", "--json", status=0)
    installed.run(project, "tokenmill", "train", "no.toml", "--shards", "out/small", "--run", "run", status=2)
    assert list(project.rglob("*.imported")) == []
    build = read_json(project / "out/small.work/build.json")
    assert build["workers"] == 2
    manifests = [read_json(project / name / "manifest.json") for name in ("out/small", "out/one")]
    assert manifests[0] == manifests[1]


@pytest.mark.long
def test_the_demo_builds_by_name_in_any_folder(installed: Installed, tmp_path: Path):
    command = ["build", "demo", "--out", "out/demo", "--tokens", "200K", "--set", "tokenizer.vocab_size=600"]
    done = installed.run(tmp_path, "tokenmill", *command, "--set", "split.val_tokens=2000")
    assert "gathering the text of this installation into out/demo-corpus" in done.stderr
    again = installed.run(tmp_path, "tokenmill", "plan", "demo", "--json")
    assert "gathering" not in again.stderr
    names = [source["name"] for source in json.loads(again.stdout)["sources"]]
    assert names == ["docs-prose", "docs-maths", "stdlib-code"]
    done = installed.run(tmp_path, "tokenmill", "fit", "tinystories-28mm", "--gpu-memory", "80GB", status=2)
    assert "Did you mean 'tinystories-28m'?" in done.stderr


def test_a_package_of_the_same_name_is_named(own: Installed, project: Path):
    """As after `pip install trainer`: another distribution's files lie over ours."""
    (own.site / "trainer/__init__.py").write_text("from trainer.trainer import Trainer\n")
    done = own.run(project, "tokenmill", "build", "recipe.toml", "--out", "out/small", status=2)
    assert "trainer/__init__.py is not the file that tokenmill installed" in done.stderr
    assert "a separate environment" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_extra_is_named(own: Installed, project: Path):
    (own.site / "torch.py").write_text("raise ModuleNotFoundError('not installed', name='torch')\n")
    own.run(project, "tokenmill", "build", "recipe.toml", "--out", "out/small")
    train = ["train", "demo", "--shards", "out/small", "--run", "out/run"]
    (remedy,) = re.findall("Install it: (.*)", own.run(project, "tokenmill", *train, status=2).stderr)
    program, *words = shlex.split(remedy)
    assert Path(program).parent.samefile(
        own.bin
    )  # of the environment that lacks it, whatever `pip` the shell would find
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words == ["-m", "pip", "install", *sorted(extras["train"])]

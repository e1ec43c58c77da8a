"""What a node of Ray is checked for, and which of its errors name the node."""

import pickle
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from pipeline.engine.ray_executor import check_versions, list_versions, run_on_node
from shards.errors import InputError
from shards.stores.object_client import Connection, NoCredentialsError, StoreError, to_store_error
from shards.terminal.reporter import report_to
from tests.support.stage_tasks import make_calls


@pytest.fixture(autouse=True)
def no_reporter_stays() -> Iterator[None]:
    """Take back what `run_on_node` sets, which has a process of its own on a cluster."""
    yield
    report_to(None)


@pytest.mark.parametrize("package", ["tokenizers", "numba"])
def test_a_worker_with_another_version_of_a_package_or_of_an_extra(package: str):
    different = list_versions() | {package: "0.0.1"}
    with pytest.raises(InputError, match=rf"has {package} {version(package)}, the driver has 0\.0\.1\. "):
        run_on_node(b"", different, {})


def test_a_package_of_an_extra_may_be_on_one_side_alone(monkeypatch: pytest.MonkeyPatch):
    with_numba = list_versions()
    check_versions(with_numba)
    without = {name: found for name, found in with_numba.items() if name != "numba"}
    check_versions(without)
    monkeypatch.setattr("pipeline.engine.ray_executor.list_versions", lambda: without)
    check_versions(with_numba)


@pytest.mark.parametrize("package", ["numba", "credentials"])
def test_the_host_is_named_that_lacks_a_package_or_credentials(package: str, tmp_path: Path):
    with pytest.raises(InputError, match=rf"^node {socket.gethostname()}: .*{package}"):
        run_on_node(need(package, tmp_path), list_versions(), {})
    with pytest.raises(StoreError, match=r"^s3://b/x: there is no bucket$"):  # which is not the node's fault
        run_on_node(need("bucket", tmp_path), list_versions(), {})


def need(package: str, folder: Path) -> bytes:
    """Return a pickled call of a task that needs a package, or credentials."""
    (call,) = make_calls(folder / "stage", [{"name": "a", "package": package}], "need_extra")
    return pickle.dumps(call)


def test_a_store_that_is_left_without_credentials_asks_the_machine_for_a_role():
    error = to_store_error(
        OSError("error sending request for url (http://169.254.169.254/latest/api/token)"),
        what="s3://b/x",
        doing="read",
        scheme="s3",
        bucket="b",
        at=Connection("https://s3.us-east-1.amazonaws.com", "us-east-1", None, None),
    )
    assert isinstance(error, NoCredentialsError)
    assert str(error).startswith(
        "s3://b/x: no credentials in the environment, and no role of this machine. Set AWS_ACCESS_KEY_ID"
    )

"""Workers on hosts other than the driver's: the checks before a call, and the count of calls lost with a worker."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from pipeline.engine.executors import MAX_LOSSES
from pipeline.engine.tasks import Call, Outcome, Report, call_from_json, run_call
from shards.errors import InputError, MissingExtraError, RunError
from shards.stores.object_errors import NoCredentialsError

_PACKAGES = ("tokenmill", "awkward", "gigatoken", "numpy", "pyarrow", "tokenizers", "xxhash", "zstandard")
"""The packages whose version can change the bytes that a task writes."""

_EXTRA_PACKAGES = ("datasets", "datatrove", "fasttext-predict", "numba", "spacy")
"""The same, of packages that only some recipes need. A node without one is refused when a task needs it."""

_SETTINGS = ("HF_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION")


def list_versions() -> dict[str, str]:
    """Return the versions that driver and remote workers share: Python's without the last number, and packages'."""
    versions = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    for package in _EXTRA_PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def list_settings() -> dict[str, str]:
    """Return the environment variables by which remote workers read as the driver does; none is secret."""
    return {name: value for name, value in os.environ.items() if name.startswith("TOKENMILL_") or name in _SETTINGS}


def check_remote_worker(driver: Mapping[str, str]) -> None:
    """Check that this remote worker has the versions of the driver; an extra's package may be missing on either side.

    Raises:
        InputError: it does not; the message names both.
    """
    own = list_versions()
    needed = {name: found for name, found in driver.items() if name in own or name not in _EXTRA_PACKAGES}
    different = [
        f"{name} {own.get(name)}, the driver has {found}" for name, found in needed.items() if own.get(name) != found
    ]
    if different:
        raise InputError(
            f"node {socket.gethostname()} has {'; '.join(different)}. Tasks there could write other bytes. Install the "
            f"driver's versions on every node, or start the build with a Python that all nodes share (the node's: "
            f"{sys.executable})."
        )


def run_remote_call(text: str, versions: Mapping[str, str], report: Report) -> Outcome:
    """Run a call of the driver on this remote worker, once its software and folders are those of the driver.

    Args:
        text: the call, from `call_to_json`.
        versions: the driver's, from `list_versions`.
        report: called with what the task reports.

    Raises:
        InputError: this node lacks what the task needs; the message names the node.
        Whatever the task raises.
    """
    check_remote_worker(versions)
    try:
        call = call_from_json(text)
        check_remote_folders(call)
        return run_call(call, report)
    except (MissingExtraError, NoCredentialsError) as error:  # whose remedy is on this node
        raise InputError(f"node {socket.gethostname()}: {error}") from error


def check_remote_folders(call: Call) -> None:
    """Check that this remote worker sees the work folder and the set's folder; the driver has made them.

    Raises:
        InputError: it does not.
    """
    folders = [
        call.stage.folder.parent if call.stage.folder else None,
        call.outputs.folder if call.outputs else None,
    ]
    for folder in folders:
        if folder is not None and not folder.is_dir():
            raise InputError(
                f"{folder}: node {socket.gethostname()} does not have this folder. Choose folders for --work and "
                "--out on a disk that every node shares."
            )


def count_loss(losses: Counter[str], call: Call, how: str, remedy: str) -> None:
    """Count the loss of a call with its remote worker, whose process ended, and nobody knows why.

    Args:
        losses: those of each task so far, by its digest.
        call: the call that was lost.
        how: how its worker ended.
        remedy: what a person can do.

    Raises:
        RunError: the call has been lost `MAX_LOSSES` times; `how` is the last one.
    """
    losses[call.task.digest] += 1
    if losses[call.task.digest] >= MAX_LOSSES:
        raise RunError(
            f"{call}: lost {MAX_LOSSES} times, most often because memory ran out; the last time: {how}. Finished "
            f"work is kept. {remedy}"
        )

"""Azurite, the emulator of Azure Blob Storage, on loopback, where it is installed (`npm install -g azurite`)."""

import base64
import contextlib
import hashlib
import hmac
import http.client
import os
import shutil
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.support.servers.loopback import find_free_ports
from tests.support.servers.objects import ObjectServer, running

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's only account and its key, which are public."""
_API = "2021-12-02"


@contextlib.contextmanager
def azurite_store(folder: Path) -> Iterator[ObjectServer]:
    """Run Azurite, or skip the test where it is not installed.

    Args:
        folder: an empty folder in which it writes.
    """
    program = os.environ.get("TOKENMILL_AZURITE") or shutil.which("azurite-blob")
    if not program:
        pytest.skip("azurite-blob is not installed: npm install -g azurite, or set TOKENMILL_AZURITE to the program")
    (port,) = find_free_ports(1)
    place = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    with running([program, *place, "--silent", "--disableTelemetry"], port) as server:
        yield server


def make_container(server: ObjectServer, name: str) -> str:
    """Make a container, and return its address."""
    date, resource = formatdate(usegmt=True), f"/{ACCOUNT}/{name}"
    signed = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{_API}\n/{ACCOUNT}{resource}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": _API,
        "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        "Content-Length": "0",
    }
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        connection.request("PUT", f"{resource}?restype=container", headers=headers)
        answer = connection.getresponse()
        if answer.status != 201:
            raise RuntimeError(f"{server.url}: cannot make the container {name}: {answer.read()!r}")
    return f"az://{name}"


def azure_environment(monkeypatch: pytest.MonkeyPatch, server: ObjectServer) -> None:
    """Point this process, and those it starts, at the emulator; no other settings of Azure count."""
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{server.url}/{ACCOUNT}")

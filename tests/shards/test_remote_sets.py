"""A set in a bucket: every command that reads a set gives what it gives for the same set in a folder."""

from dataclasses import replace

import pytest

from shards.validation.validate import validate
from tests.support.builds import call_here
from tests.support.servers.http11 import Request, Response
from tests.support.servers.objects import BUCKET, Proxy, aws_environment, upload

pytestmark = pytest.mark.long


PLACE = f"s3://{BUCKET}/sets/good"


@pytest.fixture
def remote(server, good_set) -> str:
    upload(good_set, PLACE)
    return PLACE


def test_validation_makes_few_requests(remote, server, monkeypatch):
    with Proxy(server) as proxy:
        aws_environment(monkeypatch, proxy.url)
        assert validate(remote, level="quick").ok
        asked = len(proxy.requests)
        assert asked <= 6 + 2 * 3  # listing, manifest, tokenizer, recipe; a seek table and a sidecar for each shard
        proxy.forget()
        assert validate(remote, level="full").ok
        assert len(proxy.requests) <= asked + 5 * 3


def test_a_file_that_vanishes_during_validation_is_named(remote, server, monkeypatch):
    name = "train-00000.bin.zst"

    class Vanishing(Proxy):
        def _pass_on(self, request: Request) -> Response:
            gone = request.method == "GET" and request.target.endswith(f"/{name}")
            return super()._pass_on(replace(request, target=f"{request.target}.gone") if gone else request)

    with Vanishing(server) as proxy:
        aws_environment(monkeypatch, proxy.url)
        problems = validate(remote, level="full").problems
    assert [(found.kind, found.where) for found in problems] == [("file_unreadable", name)]
    assert f"cannot be read: {remote}/{name}: does not exist" in str(problems[0])


@pytest.fixture
def on_the_hub(good_set, hub) -> str:
    hub.publish("tester/good", good_set)
    return "hf://datasets/tester/good"


@pytest.mark.parametrize("place", ["remote", "on_the_hub"])
def test_commands_print_what_they_print_for_a_folder(place, good_set, tmp_path, request):
    remote = request.getfixturevalue(place)

    def both(*arguments: str, out: str = "") -> None:
        results = []
        for place, name in ((good_set, "here"), (remote, "there")):
            where = ["--out", tmp_path / name / out] if out else []
            done = call_here(arguments[0], place, *arguments[1:], *where, "--json")
            assert done.returncode in (0, 1), done.stderr
            found = done.json
            for key in ("path", "out", "seconds", "usage"):
                found.pop(key, None)
            results.append((done.returncode, found))
        assert results[0] == results[1]

    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    both("inspect")
    both("inspect", "--shard", "1", "--document", "3")
    both("validate")
    both("trace", "--text", "café", "--workers", "2")
    both("trace", "--shard", "0", "--offset", "77")
    both("audit", "--workers", "1", out="audit")
    both("report", "--workers", "1", out="report")
    both("export", "--to", "nanogpt", out="export")
    for name in ("audit/tokens.parquet", "export/tokenizer.json", "export/train.bin"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    pages = [(tmp_path / name / "report" / "index.html").read_text(encoding="utf-8") for name in ("here", "there")]
    assert pages[0].replace(str(good_set), "SET") == pages[1].replace(remote, "SET")

"""A bucket as a store: real servers, requests that fail, and a clear message for everything a user can have wrong."""

import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shards.stores import object_store, retry
from shards.stores.object_client import connect
from shards.stores.object_store import ObjectStore, open_objects, require_abilities
from shards.stores.open import open_store
from shards.stores.retry import StoreError, count_retries
from tests.support.servers.loopback import find_free_ports
from tests.support.servers.objects import ACCESS_KEY, BUCKET, SECRET_KEY, ObjectServer, Proxy, aws_environment

pytestmark = pytest.mark.long


FAULTS = ("reset", "503", "short", "stall", "429", "reset-body")
PLACE = f"s3://{BUCKET}/a/place"


@pytest.fixture
def store(server: ObjectServer) -> ObjectStore:
    return open_objects(PLACE)


@pytest.fixture
def proxy(server: ObjectServer, monkeypatch):
    with Proxy(server) as proxy:
        aws_environment(monkeypatch, proxy.url)
        yield proxy


# --- Requests that fail ---


def test_with_every_fifth_request_failing_nothing_is_lost_or_short(proxy, tmp_path, capsys):
    store = open_objects(PLACE)
    proxy.faults.every(5, *FAULTS, stall_s=0.3)
    before = count_retries()
    big = os.urandom(object_store.WHOLE_BYTES + 12345)
    (tmp_path / "big").write_bytes(big)
    for number in range(20):
        store.put(f"small/{number}", b"%d" % number * 1000)
    store.put("big", tmp_path / "big")
    store.put("bytes", big)
    for number in range(20):
        assert store.read(f"small/{number}") == b"%d" % number * 1000
        assert store.read_range("big", number * 1_000_000, number * 1_000_000 + 77) == big[number * 1_000_000 :][:77]
    assert store.read("big") == store.read("bytes") == big
    assert len(list(store.list())) == 22
    assert {record.fault for record in proxy.requests} >= set(FAULTS)
    assert count_retries() - before >= 10
    assert capsys.readouterr().err == ""


def test_one_creator_wins_although_answers_are_lost(proxy):
    """The answer of a creation that worked may be lost; the winner must learn that it won."""
    store = open_objects(PLACE)
    proxy.faults.every(3, "short", match=f"/{BUCKET}/")  # the request is carried out, and nothing is answered
    for name in "abcdefgh":  # of one in three, the winner's answer is lost
        contents = [b"writer %d" % number for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            won = list(pool.map(lambda content, name=name: store.create(name, content), contents))
        assert won.count(True) == 1
        assert store.read(name) == contents[won.index(True)]
    assert "short" in {record.fault for record in proxy.requests if record.method == "PUT"}


def test_a_listing_goes_on_where_it_broke_off(proxy, server):
    store = open_objects(PLACE)
    names = {f"{number:05d}" for number in range(1100)}
    for name in names:
        store.put(name, b"")
    server.send("PUT", f"/{BUCKET}/a/place/")  # as the console of S3 makes a folder
    proxy.forget()
    assert {file.name for file in store.list()} == names
    assert len(proxy.requests) == 2
    proxy.faults.every(2, "503", "reset-body", match=f"^/{BUCKET}$")
    listed = [file.name for file in store.list()]
    assert (len(listed), set(listed)) == (1100, names)
    proxy.faults.off()
    store.delete_all()
    assert list(store.list()) == []


def test_a_file_that_changes_while_it_is_sent_is_an_error(store, tmp_path, monkeypatch):
    big = tmp_path / "big"
    big.write_bytes(bytes(object_store.WHOLE_BYTES + 1))
    send = type(connect("s3", BUCKET).parts).put

    def cut_and_send(*arguments, **options):
        os.truncate(big, object_store.PART_BYTES + 5)
        return send(*arguments, **options)

    monkeypatch.setattr(type(connect("s3", BUCKET).parts), "put", cut_and_send)
    with pytest.raises(OSError, match="Did the file change"):
        store.put("big", big)


# --- What a store cannot do ---


def test_a_store_that_ignores_conditions_is_found_by_the_probe(server, monkeypatch):
    with Proxy(server, ignores=("if-none-match", "range")) as proxy:
        aws_environment(monkeypatch, proxy.url)
        store = open_objects(PLACE)
        with pytest.raises(StoreError, match="cannot create a file only if it is absent"):
            require_abilities(store)
        assert list(store.list()) == []
        store.put("file", b"0123456789")
        assert store.read("file") == b"0123456789"
        with pytest.raises(StoreError, match="does not read ranges"):
            store.read_range("file", 2, 5)


# --- What a user can have wrong ---


def test_an_absent_bucket_is_named(server):
    store = open_objects("s3://absent/place")
    for request in (store.read, store.delete, lambda name: store.put(name, b""), lambda _: [*store.list()]):
        with pytest.raises(StoreError, match=r"there is no bucket 'absent' at http://127.0.0.1:\d+. Create it"):
            request("x")


def test_an_endpoint_that_never_answered_is_not_tried_for_long(monkeypatch):
    monkeypatch.setattr(retry, "UNREACHED_S", 1.5)
    aws_environment(monkeypatch, f"http://user:{SECRET_KEY}@127.0.0.1:{find_free_ports(1)[0]}")
    began = time.time()
    said = r"gave up after [01] s and \d+ attempts; the last one: nothing answers at http://127.0.0.1:\d+ \(is"
    with pytest.raises(StoreError, match=said) as error:
        open_objects(PLACE).read("x")
    assert SECRET_KEY not in str(error.value)
    assert time.time() - began < 1.6


def test_keys_come_before_a_profile_and_plain_http_may_be_accepted(monkeypatch):
    aws_environment(monkeypatch, "http://store.example:9000")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert str(open_store(PLACE)) == PLACE


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (403, "AccessDenied</Code>", r"no permission to read at .*HTTP 403 AccessDenied\). Ask"),
        (403, "InvalidAccessKeyId</Code>", r"refuses the credentials \(HTTP 403 InvalidAccessKeyId\)"),
        (301, "PermanentRedirect</Code>", r"another region than 'us-east-1' .*Set AWS_REGION"),
        (400, "AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region>", r"Set AWS_REGION to its region"),
        (418, "tea", r"answered HTTP 418 to a request to read. Is the endpoint right"),
    ],
)
def test_an_answer_that_is_final_is_explained(proxy, status, body, message):
    body = f"<Error><Code>{body}</Error>{SECRET_KEY}{ACCESS_KEY}".encode()
    proxy.faults.on("place/x", status=status, body=body)
    with pytest.raises(StoreError, match=message) as error:
        open_objects(PLACE).read("x")
    assert len(proxy.requests) == 1
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret not in f"{error.value!r} {error.value.__cause__!r}"


def test_secrets_are_in_no_text_and_no_pickle(store):
    for shown in (str(store), repr(store), repr(pickle.dumps(store)), repr(connect("s3", BUCKET))):
        assert ACCESS_KEY not in shown
        assert SECRET_KEY not in shown


def test_a_slow_first_byte_is_waited_for(proxy):
    store = open_objects(PLACE)
    store.put("x", b"1")
    proxy.faults.every(1, "stall", stall_s=0.5, most=1)
    began, before = time.monotonic(), count_retries()
    assert (store.read("x"), count_retries()) == (b"1", before)
    assert time.monotonic() - began > 0.4

"""Push, pull and reading on the Hub, against a real server on loopback whose connections break.

The server keeps what it was sent by SHA-256, checks it, and shows it only once it is committed; see tests/servers.
"""

import dataclasses
import gzip
import json
import re
import shutil
import socket
from pathlib import Path

import pytest
from huggingface_hub import HfApi

import shards
from shards.hub import push as hub_push
from shards.stores import hub_client, retry
from shards.stores.hub_store import HubAddress, parse_hub_address
from tests.support.builds import call_here
from tests.support.faults import edit
from tests.support.servers.hub import TOKEN, use_hub
from tests.support.servers.hub_writes import WRITER
from tests.support.servers.snapshots import Entry, blob_id, hashed, snapshot_from
from tests.support.shard_sets import cut_train, files_of, write_set

# How huggingface_hub hands a file to its own transport.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "tester/set"
URL = f"hf://datasets/{REPO}"
TRAIN = [f"train-{index:05d}" for index in range(5)]


@pytest.fixture(scope="module")
def whole(_shared_plan, tmp_path_factory):
    """Return the folder of a set of one validation and five training shards. Read only."""
    folder = tmp_path_factory.mktemp("pushed") / "set"
    write_set(folder, cut_train(_shared_plan, 5))
    return folder


def run(*arguments):
    """Run a command in this process; return the exit status, what it printed, and what it said."""
    done = call_here(*arguments)
    told = done.stdout + done.stderr
    assert WRITER not in told
    assert "Signature" not in told
    return (
        done.returncode,
        done.json if "--json" in arguments and done.stdout else done.stdout,
        done.stderr,
    )


def push(folder, repo=REPO, *arguments):
    """Push a set, and return the exit status and what is told."""
    return run("push", folder, repo, "--json", *arguments)[:2]


def refuse(said, *arguments):
    """Run a command that is refused in one line that has these words; return the line."""
    status, _, err = run(*arguments)
    assert (status, said in err, len(err.splitlines())) == (2, True, 1), err
    return err


def sha_of(folder, name):
    return hashed(folder / name).sha256


def uploads(hub, folder):
    """Return the large files that arrived whole, in order of their names: one that came twice is there twice."""
    names = {hashed(path).sha256: path.name for path in folder.iterdir()}
    return sorted(names[value] for event, value in hub.writes.log if event == "upload")


def large_files(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".json")


def commits(hub):
    return [value.split() for event, value in hub.writes.log if event == "commit"]


def flipped(path):
    """Return a file's bytes with one changed, among those of the first frame or page."""
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    return bytes(content)


def without(folder, target, *names):
    """Copy a set without the files of these shards."""
    return shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*(f"{name}.*" for name in names)))


# --- There and back ---


def test_what_was_pushed_is_pulled(hub, whole, tmp_path):
    status, told = push(whole)
    assert (status, told["created"], told["files"], len(told["added"])) == (0, True, 21, 21)
    # One commit makes the set visible: every revision of the repository holds the whole set or none.
    assert uploads(hub, whole) == large_files(whole)
    (names,) = commits(hub)
    assert sorted(names) == sorted(files_of(whole))
    for snapshot in hub.repos[REPO].snapshots.values():
        assert ("manifest.json" in snapshot.files) == (set(files_of(whole)) <= set(snapshot.files))
    # A second push sends nothing.
    hub.writes.log.clear()
    status, told = push(whole)
    assert (status, told["added"], hub.writes.log) == (0, [], [])
    status, told, _ = run("pull", REPO, "--out", tmp_path / "back", "--json")
    assert (status, told["files"]) == (0, 21)
    assert told["bytes"] == sum(map(len, files_of(whole).values()))
    assert files_of(tmp_path / "back") == files_of(whole)
    # The token went to the Hub, never to where files are kept.
    assert {record.authorized for record in hub.requests if record.path.startswith(("/cdn/", "/lfs"))} == {False}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_many_files_are_committed_in_parts_and_the_manifest_last(hub, whole, good_set, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_push, "COMMIT_FILES", 8)
    push(whole)
    assert [len(names) for names in commits(hub)] == [8, 8, 5]
    assert commits(hub)[-1][-1] == "manifest.json"
    assert len(shards.open_set(URL).shards) == 6
    # Another set is replaced only when told, and goes first: no revision mixes two sets.
    old = hub.commit(REPO)
    refuse("holds another set", "push", good_set, REPO)
    assert len(commits(hub)) == 3
    monkeypatch.setattr(hub_push, "COMMIT_FILES", 3)
    assert push(good_set, REPO, "--replace")[0] == 0
    first = commits(hub)[3]
    assert "-manifest.json" in first
    assert [names for names in commits(hub)[4:] if "manifest.json" in names] == [commits(hub)[-1]]
    names = {entry.path for entry in HfApi(endpoint=hub.url).list_repo_tree(REPO, repo_type="dataset")}
    assert names == {*files_of(good_set), ".gitattributes"}
    # The old set stays in the history, to be had by its commit.
    assert run("pull", f"{REPO}@{old}", "--out", tmp_path / "old")[0] == 0
    assert files_of(tmp_path / "old") == files_of(whole)


def test_a_dry_run_says_what_a_push_would_send_or_refuse(hub, whole, good_set, tmp_path, monkeypatch):
    status, told = push(whole, REPO, "--dry-run")
    assert (status, told["created"], told["replaces"], told["url"]) == (0, True, None, URL)
    assert sorted(told["added"]) == sorted(files_of(whole))
    assert told["added_bytes"] == told["bytes"] == sum(map(len, files_of(whole).values()))
    hub.publish(REPO, without(whole, tmp_path / "part", *TRAIN[3:]))
    status, told = push(whole, REPO, "--dry-run")
    assert (status, told["created"], told["files"], len(told["added"])) == (0, False, 21, 6)
    assert (push(whole)[1]["added"], told["added_bytes"] < told["bytes"]) == (told["added"], True)
    hub.writes.log.clear()
    refuse("holds another set", "push", good_set, REPO, "--dry-run")
    assert "would be replaced" in run("push", good_set, REPO, "--dry-run", "--replace")[1]
    monkeypatch.delenv("HF_TOKEN")
    refuse("No token was sent", "push", whole, "tester/other", "--dry-run")
    assert (hub.writes.log, [record.method for record in hub.requests if "/create" in record.path]) == ([], [])


# --- Pushes that break ---


def test_a_push_that_ends_early_shows_nothing_and_goes_on(hub, whole, monkeypatch):
    monkeypatch.setattr(hub_push, "BATCH_FILES", 3)
    monkeypatch.setattr(retry, "SILENT_S", 0.05)
    hub.faults.cut_uploads("lfs-upload/" + sha_of(whole, "train-00003.bin.zst"), times=None)
    status, _, err = run("push", whole, REPO)
    said = "(?s)trying again until .*train-00002.docs.parquet and 2 more files.*run the same command again"
    assert (status, bool(re.search(said, err))) == (2, True), err
    assert commits(hub) == []
    before = uploads(hub, whole)
    assert "train-00002.bin.zst" in before
    with pytest.raises(shards.ShardSetError, match=r"no manifest\.json"):
        shards.open_set(URL)
    # It goes on with what is missing; an upload that is cut is sent again alone.
    hub.faults.off()
    cut = sha_of(whole, "train-00004.bin.zst")
    hub.faults.cut_uploads(f"lfs-upload/{cut}")
    hub.forget()
    status, told = push(whole)
    assert (status, told["created"], len(told["added"])) == (0, False, 21)
    assert [record.path.split("/")[2] for record in hub.requests if record.fault == "cut-upload"] == [cut]
    assert uploads(hub, whole) == large_files(whole)


def test_a_commit_whose_answer_is_lost_is_not_made_twice(hub, whole, monkeypatch):
    monkeypatch.setattr(hub_push, "COMMIT_FILES", 8)
    hub.faults.every(3, "reset", match="/commit/", most=1)
    failed = retry.count_retries()
    status, told = push(whole)
    assert (status, len(told["added"]), told["commit"]) == (0, 21, hub.commit(REPO))
    assert retry.count_retries() == failed + 1
    assert [len(names) for names in commits(hub)] == [8, 8, 5]
    assert run("validate", URL)[0] == 0


def test_someone_elses_commit_in_between_is_kept(hub, whole, monkeypatch):
    def commit(*given):
        if not commits(hub):
            HfApi(endpoint=hub.url).upload_file(
                path_or_fileobj=b"note", path_in_repo="notes.md", repo_id=REPO, repo_type="dataset"
            )
        return original(*given)

    original = hub_push._commit
    monkeypatch.setattr(hub_push, "_commit", commit)
    failed = retry.count_retries()
    assert push(whole)[0] == 0
    assert retry.count_retries() == failed + 1  # HTTP 412
    names = {entry.path for entry in HfApi(endpoint=hub.url).list_repo_tree(REPO, repo_type="dataset")}
    assert names == {*files_of(whole), ".gitattributes", "notes.md"}


def test_without_a_network_push_and_pull_end_at_once_with_the_remedy(whole, tmp_path, monkeypatch):
    with socket.socket() as closed:  # no other server takes this port
        closed.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{closed.getsockname()[1]}"
        use_hub(f"http://{host}", monkeypatch)
        for name, seconds in {"GIVE_UP_S": 4.0, "UNREACHED_S": 0.5}.items():
            monkeypatch.setattr(retry, name, seconds)
        for command in (("push", whole, REPO, "--dry-run"), ("pull", REPO, "--out", tmp_path / "back")):
            status, told, err = run(*command, "--json")
            assert (status, told["status"]) == (2, "refused")
            said = rf"gave up after [01] s and .*; the last one: no connection to {host} \(.* Connection refused\)\. "
            assert re.search(said + r".*\(HTTPS_PROXY\)\? With HF_HUB_OFFLINE=1", err)


def test_a_refused_upload_does_not_tell_its_signed_address(hub, whole):
    hub.faults.on("lfs-upload/" + sha_of(whole, "train-00001.bin.zst"), status=410)
    # The address, which `run` has seen to be without its signature.
    assert "/lfs-upload/" in refuse("the Hub answered HTTP 410", "push", whole, REPO)
    assert commits(hub) == []


# --- What is refused ---


def test_a_byte_that_turned_on_disk_is_not_sent(hub, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "set")
    (folder / "train-00001.bin.zst").write_bytes(flipped(whole / "train-00001.bin.zst"))
    # Validation names it at once; what comes after that, the push does.
    status, told = push(folder)
    assert (status, hub.requests) == (1, [])
    assert "file_checksum" in {one["kind"] for one in told["problems"]}
    with pytest.raises(shards.ShardSetError, match=r"^train-00001\.bin\.zst: sha256 is \w+; expected"):
        hub_push.push(hub_push.list_files(folder), HubAddress(REPO))
    assert (commits(hub), uploads(hub, whole)) == ([], [])


@pytest.mark.parametrize(
    ("token", "repo", "said"),
    [
        ("", REPO, "No token was sent: set HF_TOKEN"),
        (TOKEN, REPO, "refused (HTTP 403)"),
        ("hf_wrong_and_secret", REPO, "refused (HTTP 401)"),
        (WRITER, "others/set", "don't have the rights"),
    ],
)
def test_without_the_right_to_write(hub, whole, monkeypatch, token, repo, said):
    monkeypatch.setenv("HF_TOKEN", token)
    err = refuse(said, "push", whole, repo)
    assert hub.writes.log == []
    assert not token or token not in err


def test_what_is_public_stays_no_secret(hub, whole, tmp_path, monkeypatch):
    hub.publish(REPO, without(whole, tmp_path / "public", "manifest"))
    refuse("is public", "push", whole, REPO, "--private")
    assert hub.writes.log == []
    assert push(whole, "tester/secret", "--private")[0] == 0
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    refuse("no such dataset, or it is private", "pull", "tester/secret", "--out", tmp_path / "back")


def test_a_branch_of_its_own(hub, whole, good_set, tmp_path):
    refuse("only the branch main", "push", whole, f"{REPO}@new")
    assert hub.writes.log == []
    assert push(whole)[0] == 0
    hub.repos[REPO].refs["v2/two"] = hub.commit(REPO)  # as `hf` makes a branch
    assert push(good_set, f"{REPO}@v2%2Ftwo", "--replace")[0] == 0
    assert len(shards.open_set(URL).shards) == 6
    branch = shards.open_set(f"{URL}@v2%2Ftwo")
    assert len(branch.shards) == 3
    assert branch.shard("val-00000").read().tolist() == shards.open_set(good_set).shard("val-00000").read().tolist()
    refuse("no such revision", "pull", f"{REPO}@none", "--out", tmp_path / "none")


def test_a_bad_card_is_refused_before_anything_is_sent(hub, whole, tmp_path):
    card = tmp_path / "card.md"
    card.write_text("---\ntags: [a\n---\nText\n")
    refuse("card.md: the Hub refuses its metadata", "push", whole, REPO, "--card", card)
    assert (uploads(hub, whole), commits(hub)) == ([], [])
    card.write_text("---\nlicense: mit\n---\n# A set\n")
    assert run("push", whole, REPO, "--card", card)[0] == 0
    assert sorted(commits(hub)[0]) == sorted(["README.md", *files_of(whole)])
    # A card is no part of the set, so a pull leaves it.
    assert run("pull", REPO, "--out", tmp_path / "back")[0] == 0
    assert files_of(tmp_path / "back") == files_of(whole)


def test_the_reports_card_is_taken(hub, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "set")
    (tmp_path / "set.report").mkdir()
    card = tmp_path / "set.report" / "README.md"
    card.write_text("---\nlicense: mit\n---\n# Another's\n")
    refuse("may be another's", "push", folder, REPO)
    assert hub.writes.log == []
    card.write_text(f"---\nlicense: mit\n---\n{shards.open_set(folder).manifest_sha256}\n# Made before\n")
    assert run("push", folder, REPO)[0] == 0
    entry = hub.repos[REPO].snapshots[hub.commit(REPO)].files["README.md"]
    assert Path(entry.file).read_text().endswith("# Made before\n")


# --- Pulls that break ---


def test_files_of_equal_content_and_long_names_are_pulled(hub, plan, tmp_path):
    write_set(tmp_path / "set", dataclasses.replace(plan, recipe=plan.tokenizer))
    (tmp_path / "set/recipe.json").rename(tmp_path / "set" / ("r" * 255))
    edit(tmp_path / "set", lambda manifest: manifest["recipe"].update(file="r" * 255))
    hub.publish(REPO, tmp_path / "set")
    hub.latency_s = 0.1
    assert run("pull", REPO, "--out", tmp_path / "back")[0] == 0
    assert files_of(tmp_path / "back") == files_of(tmp_path / "set")


@pytest.mark.parametrize("stays", [False, True])
def test_a_flipped_byte_is_fetched_once_more_then_named(hub, whole, tmp_path, stays):
    hub.publish(REPO, whole)
    names = ["train-00001.bin.zst", "val-00000.docs.parquet"]
    for name in names:
        hub.faults.on(f"/cdn/{sha_of(whole, name)}", body=flipped(whole / name), times=None if stays else 1)
    status, told, _ = run("pull", REPO, "--out", tmp_path / "back", "--json")
    assert status == int(stays)
    if stays:
        assert {(one["kind"], one["where"]) for one in told["problems"]} == {("file_checksum", name) for name in names}
        assert not (tmp_path / "back").exists()
    else:
        assert files_of(tmp_path / "back") == files_of(whole)


def test_a_pull_that_ends_early_goes_on_with_what_is_there(hub, whole, tmp_path, monkeypatch):
    hub.publish(REPO, whole)
    out, name = tmp_path / "back.v2", "train-00002.bin.zst"
    monkeypatch.setattr(hub_push, "BATCH_FILES", 3)
    monkeypatch.setattr(retry, "GIVE_UP_S", 0.2)
    hub.faults.on(f"/cdn/{sha_of(whole, name)}", status=503)
    refuse("run the same command again", "pull", REPO, "--out", out)
    assert not out.exists()
    (staging,) = tmp_path.glob(".back.v2.*.unfinished")
    assert staging.stat().st_mode & 0o777 == 0o700
    # What lies there is not trusted: neither wrong bytes nor files of another commit.
    (staging / "train-00000.bin.zst").write_bytes(flipped(whole / "train-00000.bin.zst"))
    (staging / "of another commit").write_text("")
    hub.faults.off()
    assert run("pull", REPO, "--out", tmp_path / "back")[0] == 0  # takes nothing from a folder of a longer name
    hub.forget()
    assert run("pull", REPO, "--out", out)[0] == 0
    assert files_of(out) == files_of(whole)
    assert not staging.exists()
    asked = {record.path.split("/")[2] for record in hub.requests if record.path.startswith("/cdn/")}
    assert asked >= {sha_of(whole, "train-00000.bin.zst"), sha_of(whole, name)}
    assert sha_of(whole, "train-00001.bin.zst") not in asked


def test_a_pull_needs_room_and_a_second_one_has_nothing_to_do(hub, whole, good_set, tmp_path, monkeypatch):
    part = shutil.copytree(whole, tmp_path / "part")
    with (part / "train-00000.docs.parquet").open("ab") as file:
        file.write(b"more")
    hub.publish(REPO, part)
    out, free = tmp_path / "back", shutil.disk_usage(tmp_path)._replace(free=10)
    status, told, _ = run("pull", REPO, "--out", out, "--json")
    assert (status, [(one["kind"], one["where"]) for one in told["problems"]]) == (
        1,
        [("file_size", "train-00000.docs.parquet")],
    )
    assert (out.exists(), hub.body_bytes("^/cdn/")) == (False, 0)
    hub.publish(REPO, whole)
    with monkeypatch.context() as patch:
        patch.setattr("shards.stores.files.shutil.disk_usage", lambda _path: free)
        refuse("too few", "pull", REPO, "--out", out)
        assert hub.body_bytes("^/cdn/") == 0
    assert run("pull", REPO, "--out", out, "--json")[1]["was_there"] is False
    hub.forget()
    status, told, _ = run("pull", REPO, "--out", out)
    assert (status, "nothing to do" in told, hub.body_bytes("^/cdn/")) == (0, True, 0)
    (out / "train-00001.bin.zst").write_bytes(flipped(whole / "train-00001.bin.zst"))
    status, told, _ = run("pull", REPO, "--out", out, "--json")
    assert status == 1
    assert [(one["kind"], one["where"]) for one in told["problems"]] == [("file_checksum", "train-00001.bin.zst")]
    hub.publish(REPO, good_set)
    refuse("not an empty folder", "pull", REPO, "--out", out)


def test_a_listing_that_names_other_places_is_not_followed(hub, whole, tmp_path):
    files = {path.name: hashed(path) for path in whole.iterdir()}
    content = b"evil"
    evil = Entry(str(tmp_path / "evil"), 4, "0" * 64, blob_id(content), False)
    (tmp_path / "evil").write_bytes(content)
    hub.add(REPO, snapshot_from(REPO, files | {"../evil.txt": evil, "sub/manifest.json": evil, "x.txt": evil}), "main")
    assert run("pull", REPO, "--out", tmp_path / "out" / "back")[0] == 0
    assert files_of(tmp_path / "out" / "back") == files_of(whole)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["back"]


# --- A Hub, or a proxy before it, that misbehaves ---

INFO, TREE = r"^/api/datasets/tester/set(/revision/\w+)?$", r"^/api/datasets/tester/set/tree/"
MANIFEST, HEAD, SHARDS = r"/resolve-cache/.*/manifest", r"/resolve/.*/train-", r"^/cdn/"
BOMB = gzip.compress(bytes(100 << 20))
UNENDING, LARGER, COMPRESSED = "no complete answer", "more bytes than were asked for", "the answer is compressed"


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "place", "said"),
    [
        *[("endless", place, LARGER) for place in (INFO, TREE, MANIFEST, SHARDS)],
        *[("drip", place, UNENDING) for place in (INFO, TREE, MANIFEST, SHARDS)],
        *[("drip-head", place, UNENDING) for place in (INFO, TREE, MANIFEST, HEAD, SHARDS)],
        *[("gzip", place, COMPRESSED) for place in (INFO, TREE, MANIFEST, SHARDS)],
        ("pages", TREE, UNENDING),
        ("pages", TREE, LARGER),
    ],
)
def test_an_answer_without_end_or_measure_is_given_up(hub, whole, tmp_path, monkeypatch, kind, place, said):
    if said == LARGER:
        monkeypatch.setattr(hub_client, "MOST_ANSWER_BYTES", 4 << 20 if kind == "endless" else 100_000)
    hub.publish(REPO, whole)
    if kind == "gzip":
        hub.faults.on(place, body=BOMB, headers={"Content-Encoding": "gzip"})
    elif kind == "pages":
        hub.faults.on(place, headers={"Link": f'<{hub.url}/api/datasets/{REPO}/tree/main>; rel="next"'})
    else:
        hub.faults.every(1, kind, match=place, stall_s=0.05)
    out = tmp_path / "back"
    refuse(said, "pull", REPO, "--out", out, "--give-up-after", "1" if said == UNENDING else "60")
    kept = sum(path.stat().st_size for path in tmp_path.glob(".back.*/**/*") if path.is_file())
    assert kept <= sum(map(len, files_of(whole).values()))
    assert hub.body_bytes(place) < 100 << 20  # what lies between the sockets of each connection was sent too
    hub.faults.off()
    assert run("pull", REPO, "--out", out)[0] == 0
    assert files_of(out) == files_of(whole)


LISTED = {"type": "file", "path": "manifest.json", "oid": 40 * "a", "size": 5}


@pytest.mark.parametrize(
    ("place", "answer", "said"),
    [
        *[(INFO, {"id": REPO, "sha": one, "private": False}, "which is not one") for one in (7, f"{40 * 'a'}\n")],
        *[(INFO, answer, "") for answer in ([], 7, {}, {"id": REPO, "sha": {}})],
        *[(TREE, [LISTED | {"size": size}], "which are not valid") for size in ("5", -1, True)],
        *[(TREE, [LISTED | {"oid": digest}], "which are not valid") for digest in (None, 4096 * "a")],
        *[(TREE, [LISTED | {"lfs": lfs}], "") for lfs in (7, {"size": 5, "oid": 7})],
        *[(TREE, answer, "") for answer in ([7], "text", [LISTED | {"path": 7}], [{"type": "file"}])],
    ],
)
def test_an_answer_of_wrong_values_is_refused(hub, whole, tmp_path, place, answer, said):
    hub.publish(REPO, whole)
    hub.faults.on(place, body=json.dumps(answer).encode())
    err = refuse(said, "pull", REPO, "--out", tmp_path / "back")
    assert (err.startswith(f"error: {URL}: "), len(err) < 600) == (True, True), err
    assert not list(tmp_path.glob("*back*"))


# --- Reading without pulling ---


@pytest.mark.parametrize(
    ("name", "kind", "read"),
    [
        ("train-00000.bin.zst", "frame_corrupt", lambda opened: opened.shard("train-00000").read()),
        ("train-00000.docs.parquet", "file_checksum", lambda opened: opened.shard("train-00000").documents()),
        ("manifest.json", "file_checksum", lambda opened: shards.open_set(URL)),
    ],
)
def test_a_flipped_byte_is_caught_when_read(hub, whole, name, kind, read):
    hub.publish(REPO, whole)
    opened = shards.open_set(URL)
    hub.faults.on(f"/cdn/{sha_of(whole, name)}|/resolve-cache/.*/{name}", body=flipped(whole / name))
    with pytest.raises(shards.ShardSetError) as caught:
        read(opened)
    assert [(problem.kind, problem.where) for problem in caught.value.problems] == [(kind, name)]


@pytest.mark.parametrize(
    "address", [("a/b",), ("a/b", "v1"), ("a/b", "x/y", "c/d.e"), ("a/b", "refs/pr/1", "c"), ("A-1.b_/c",)]
)
def test_addresses(address):
    expected = HubAddress(*address)
    for begin in ("hf://datasets/", "datasets/", ""):
        assert parse_hub_address(str(expected).replace("hf://datasets/", begin)) == expected
    assert parse_hub_address("a/b@refs/pr/1/c") == HubAddress("a/b", "refs/pr/1", "c")

"""The writing half of the Hub on loopback: repositories, uploads (LFS), commits.

Uploads are kept under their SHA-256 and are invisible until a commit names them, as on the real Hub; an upload whose
bytes do not have that SHA-256 is refused. `log` has the order in which things arrived. No Xet, no pull
requests; rights are those of a token on an owner's repositories.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tests.support.servers.http11 import Request, Response
from tests.support.servers.snapshots import Entry, blob_id, is_lfs, pointer, snapshot_from

if TYPE_CHECKING:
    from tests.support.servers.hub import Hub

WRITER = "hf_writer"
"""A token that may write what belongs to `OWNER`."""
OWNER = "tester"
GIT_ATTRIBUTES = b"*.parquet filter=lfs diff=lfs merge=lfs -text\n*.zst filter=lfs diff=lfs merge=lfs -text\n"


class Writes:
    """The uploads and commits of a Hub; see the module's first lines."""

    def __init__(self, hub: Hub, store: Path | None) -> None:
        self.log: list[tuple[str, str]] = []
        """("upload", SHA-256), ("commit", paths), ("create", repository), in order of arrival."""
        self._hub = hub
        self._store = store
        self._lock = threading.Lock()
        if store is not None:
            store.mkdir(parents=True, exist_ok=True)

    def answer(self, request: Request, parts: list[str], token: str | None, kind: str) -> Response | None:
        """Answer a request that writes; None: it does not."""
        if self._store is None or request.method not in ("POST", "PUT"):
            return None
        match parts:
            case ["lfs-upload", oid]:
                return self._receive(oid, request)
            case ["api", "validate-yaml"]:
                return as_json({"errors": [], "warnings": []})
            case ["api", "repos", "create"]:
                form = json.loads(request.body)
                repo = f"{form.get('organization') or OWNER}/{form['name']}"
                return self._refusal(repo, token) or self._create(repo, form)
            case ["datasets", owner, name, "info", "lfs", "objects", verb]:
                repo, ref = f"{owner}/{name.removesuffix('.git')}", ""
            case ["api", "datasets", owner, name, "preupload" | "commit" as verb, ref]:
                repo, ref = f"{owner}/{name}", unquote(ref)
            case _:
                return None
        refusal = self._refusal(repo, token)
        if refusal is not None:
            return refusal
        if repo not in self._hub.repos or self._hub.repos[repo].kind != kind:
            return missing_repo(token)
        if verb in ("batch", "verify"):
            return self._batch(json.loads(request.body)) if verb == "batch" else as_json({})
        if ref not in self._hub.repos[repo].refs:
            return error(404, f"Invalid rev id: {ref}", code="RevisionNotFound")
        if verb == "preupload":
            return self._preupload(repo, ref, json.loads(request.body))
        return self._commit(repo, ref, [json.loads(line) for line in request.body.splitlines()])

    def _refusal(self, repo: str, token: str | None) -> Response | None:
        if token is None:
            return error(401, "Invalid username or password.")
        if token != WRITER or not repo.startswith(f"{OWNER}/"):
            return error(403, f"You don't have the rights to write to {repo}")
        return None

    # --- Repositories ---

    def _create(self, repo: str, form: dict[str, Any]) -> Response:
        kind = f"{form.get('type', 'model')}s"
        url = f"{self._hub.url}/{'' if kind == 'models' else 'datasets/'}{repo}"
        if repo in self._hub.repos:
            return error(409, "You already created this dataset repo")
        self.log.append(("create", repo))
        entry = self._keep(".gitattributes", GIT_ATTRIBUTES)
        self._hub.add(repo, snapshot_from(repo, {".gitattributes": entry}), "main")
        self._hub.repos[repo].kind = kind
        if form.get("visibility") == "private":
            self._hub.private(repo, WRITER)
        return as_json({"url": url, "name": repo})

    # --- Large files ---

    def _preupload(self, repo: str, ref: str, form: dict[str, Any]) -> Response:
        files = self._hub.repos[repo].snapshots[self._hub.commit(repo, ref)].files
        answers: list[dict[str, Any]] = []
        for file in form["files"]:
            mode = "lfs" if is_lfs(file["path"], file["size"]) else "regular"
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
            if entry := files.get(file["path"]):
                answers[-1]["oid"] = entry.sha256 if entry.lfs else entry.blob_id
        return as_json({"files": answers})

    def _batch(self, form: dict[str, Any]) -> Response:
        return as_json({"transfer": "basic", "objects": [self._instruct(**file) for file in form["objects"]]})

    def _instruct(self, oid: str, size: int) -> dict[str, Any]:
        """Say where a file is to be sent; without `actions`: it is here."""
        told: dict[str, Any] = {"oid": oid, "size": size}
        if self._path(oid).exists():
            return told
        href = f"{self._hub.cdn_url}/lfs-upload/{oid}?Signature={sign(oid)}"
        return told | {"actions": {"upload": {"href": href}}}

    def _receive(self, oid: str, request: Request) -> Response:
        if request.query != f"Signature={sign(oid)}":
            return error(403, "SignatureDoesNotMatch")
        if "authorization" in request.headers:
            return error(400, "Only one auth mechanism allowed")  # as S3 says to a token beside a signature
        if hashlib.sha256(request.body).hexdigest() != oid:
            return error(400, "The uploaded bytes are not those of their SHA-256")
        with self._lock:
            self._path(oid).write_bytes(request.body)
            self.log.append(("upload", oid))
        return Response(200)

    def _path(self, sha256: str) -> Path:
        assert self._store is not None
        return self._store / sha256

    # --- Commits ---

    def _commit(self, repo: str, ref: str, lines: list[dict[str, Any]]) -> Response:
        with self._lock:
            head = self._hub.commit(repo, ref)
            files = dict(self._hub.repos[repo].snapshots[head].files)
            changed: list[str] = []
            for line in lines:
                key, value = line["key"], line["value"]
                if key == "header":
                    if value.get("parentCommit", head) != head:
                        return error(412, "A commit has happened since. Please refresh and try again.")
                    continue
                path = value["path"]
                changed.append(f"-{path}" if key.startswith("deleted") else path)
                if key == "file":
                    files[path] = self._keep(path, base64.b64decode(value["content"]))
                elif key == "lfsFile":
                    kept = self._path(value["oid"])
                    if not kept.exists():
                        return error(400, f"LFS pointer of {path} points to a file that does not exist")
                    git = blob_id(pointer(value["oid"], kept.stat().st_size))
                    files[path] = Entry(str(kept), kept.stat().st_size, value["oid"], git, True)
                elif path not in files:
                    return error(404, "A file with this name doesn't exist", code="EntryNotFound")
                else:
                    del files[path]
            commit = self._hub.add(repo, snapshot_from(repo, files), ref)
            self.log.append(("commit", " ".join(changed)))
        url = f"{self._hub.url}/datasets/{repo}/commit/{commit}"
        return as_json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def _keep(self, name: str, content: bytes) -> Entry:
        sha256 = hashlib.sha256(content).hexdigest()
        self._path(sha256).write_bytes(content)
        return Entry(str(self._path(sha256)), len(content), sha256, blob_id(content), False)


def sign(sha256: str) -> str:
    """Return the signature of an address of a large file: who has it needs no token."""
    return hashlib.sha1(sha256.encode()).hexdigest()


def as_json(content: object) -> Response:
    """Return a JSON answer."""
    return Response(200, {"Content-Type": "application/json; charset=utf-8"}, json.dumps(content).encode())


def error(status: int, message: str, *, code: str = "", headers: dict[str, str] | None = None) -> Response:
    """Return an error as the Hub does: in JSON, and in the headers that `huggingface_hub` reads."""
    named = {"X-Error-Code": code} if code else {}
    heads = {"Content-Type": "application/json; charset=utf-8", "X-Error-Message": message} | named | (headers or {})
    return Response(status, heads, json.dumps({"error": message}).encode())


def missing_repo(token: str | None) -> Response:
    """Return the answer for a repository that is not there, or not to be seen: the Hub tells anonymous clients 401."""
    if token is None:
        return error(401, "Invalid username or password.", code="RepoNotFound")
    return error(404, "Repository not found", code="RepoNotFound")

"""A Hub of datasets and models on loopback: what `huggingface_hub` and `datasets` ask of the real one, from folders.

`root/OWNER/NAME/` is a repository. It answers the API (info, tree, paths-info, refs, commits), `resolve`, and for the
CDN: large files are redirected to a signed address of *another origin* (a second port), where clients must not send
their token; the records show whether they did. With a `store` it can be written to (`hub_writes`). It has no Xet (set
HF_HUB_DISABLE_XET=1 to upload), and tokens stand for users.
"""

from __future__ import annotations

import time
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote

from tests.support.servers.http11 import FileSpan, Request, Response
from tests.support.servers.hub_writes import WRITER, Writes, as_json, error, missing_repo, sign
from tests.support.servers.loopback import Server
from tests.support.servers.snapshots import Entry, Snapshot, snapshot_of

if TYPE_CHECKING:
    import pytest

TOKEN = "hf_reader"
"""A token that every Hub here knows: a user without access to anything private or gated."""


@dataclass(slots=True)
class Repo:
    """A repository: commits by name of a ref, and every commit ever published."""

    refs: dict[str, str] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    kind: str = "datasets"
    private: bool = False
    gated: bool = False
    readers: set[str] = field(default_factory=set)


def use_hub(url: str, patch: pytest.MonkeyPatch) -> None:
    """Make a server the Hub of this process and of those that it starts; this process retries without long pauses."""
    from huggingface_hub import constants, file_download
    from huggingface_hub.utils import _http

    from shards.stores import retry

    patch.setenv("HF_ENDPOINT", url)
    patch.setenv("HF_HUB_DISABLE_XET", "1")
    patch.setattr(constants, "ENDPOINT", url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    hurry = types.SimpleNamespace(sleep=lambda seconds: None, monotonic=time.monotonic, time=time.time)
    patch.setattr(_http, "time", hurry)
    patch.setattr(file_download, "time", hurry)
    patch.setattr(retry, "FIRST_PAUSE_S", 0.001)
    patch.setattr(retry, "GIVE_UP_S", 2.0)
    patch.setattr(retry, "SILENT_S", 0.5)


class Hub(Server):
    """Serves the repositories below root; see the module's first lines."""

    def __init__(self, root: Path | None = None, *, store: Path | None = None) -> None:
        """Read (and hash) every repository below root, and listen.

        Args:
            root: a folder of OWNER/NAME/ folders; None: none yet, see `publish`.
            store: a folder for what is uploaded; None: nothing can be.
        """
        self.repos: dict[str, Repo] = {}
        self._blobs: dict[str, Entry] = {}
        self._tokens = {TOKEN, WRITER}
        for folder in sorted(root.glob("*/*")) if root else []:
            if folder.is_dir():
                self.publish(f"{folder.parent.name}/{folder.name}", folder)
        self.writes = Writes(self, store)
        super().__init__(self._route, listeners=2)
        self.url, self.cdn_url = self.urls()

    def publish(self, repo: str, folder: Path) -> str:
        """Make the folder's files a new commit of main; older commits stay, as long as their files do.

        The commit is named by content: publishing the same files again gives the same commit. So a test that
        changes a file writes the changed set into another folder (links do) and publishes that.
        """
        return self.add(repo, snapshot_of(repo, folder), "main")

    def add(self, repo: str, snapshot: Snapshot, ref: str) -> str:
        """Point a ref to a snapshot."""
        self._blobs |= {entry.sha256: entry for entry in snapshot.files.values()}
        known = self.repos.setdefault(repo, Repo())
        known.snapshots[snapshot.commit] = snapshot
        known.refs[ref] = snapshot.commit
        return snapshot.commit

    def commit(self, repo: str, ref: str = "main") -> str:
        """Return the commit that a ref points to, 40 hexadecimal digits."""
        return self.repos[repo].refs[ref]

    def private(self, repo: str, token: str) -> None:
        """Hide the repository from everyone but the bearer of this token."""
        self.repos[repo].private = True
        self.repos[repo].readers.add(token)
        self._tokens.add(token)

    def gated(self, repo: str, *tokens: str) -> None:
        """Let everyone see the repository, but only the bearers of these tokens read its files."""
        self.repos[repo].gated = True
        self.repos[repo].readers |= set(tokens)
        self._tokens |= set(tokens)

    # --- Routes ---

    def _route(self, request: Request) -> Response:
        parts = request.target.partition("?")[0].split("/")[1:]
        if parts[0] == "cdn" and len(parts) > 3:
            return self._cdn(request, parts[1])
        token = request.headers.get("authorization", "").removeprefix("Bearer ") or None
        if token is not None and token not in self._tokens:
            return error(401, "Invalid credentials in Authorization header")
        # Of a model the paths have no `datasets`, or another word.
        kind = "datasets"
        if parts[0] not in ("api", "datasets", "lfs-upload"):
            kind, parts = "models", ["datasets", *parts]
        elif "models" in parts[1:3]:
            kind, parts = "models", ["datasets" if part == "models" else part for part in parts]
        if (written := self.writes.answer(request, parts, token, kind)) is not None:
            return written
        match parts:
            case ["api", "agent-harnesses"]:  # asked once a day by every installation
                return as_json({"standardEnvVars": [], "harnesses": {}})
            case ["api", "datasets", owner, name, *rest]:
                repo, verb, rest = f"{owner}/{name}", *(rest[:1] or ["info"]), rest[1:]
            case ["datasets", owner, name, "resolve", *rest] | ["api", "resolve-cache", "datasets", owner, name, *rest]:
                repo, verb = f"{owner}/{name}", "resolve"
            case _:
                return missing_repo(token)
        known = self.repos.get(repo)
        if known is None or known.kind != kind or (known.private and token not in known.readers):
            return missing_repo(token)
        ref = unquote("/".join(rest[:3]) if rest[:1] == ["refs"] else rest[0] if rest else "main")
        path = unquote("/".join(rest[3:] if rest[:1] == ["refs"] else rest[1:]))
        snapshot = known.snapshots.get(known.refs.get(ref.removeprefix("refs/heads/"), ref))
        if snapshot is None:
            return error(404, f"Invalid rev id: {ref}", code="RevisionNotFound")
        if verb == "resolve":
            return self._resolve(repo, known, snapshot, path, token, cached=parts[1] == "resolve-cache")
        if verb in ("info", "revision"):
            return as_json(self._info(repo, known, snapshot, parse_qs(request.query)))
        if verb == "tree":
            below = snapshot.list_folder(path, recursive="recursive=true" in request.query.lower())
            return as_json(below) if below else error(404, f"{path} does not exist", code="EntryNotFound")
        if verb == "paths-info":
            form = parse_qs(request.body.decode())
            return as_json([snapshot.tree[one] for one in form.get("paths", []) if one in snapshot.tree])
        return error(404, "Sorry, we can't find the page you are looking for.")

    def _resolve(
        self, repo: str, known: Repo, snapshot: Snapshot, path: str, token: str | None, *, cached: bool
    ) -> Response:
        if known.gated and token not in known.readers:
            message = f"Access to dataset {repo} is restricted"
            return error(401 if token is None else 403, message, code="GatedRepo")
        entry = snapshot.files.get(path)
        commit = {"X-Repo-Commit": snapshot.commit}
        if entry is None:
            return error(404, "Entry not found", code="EntryNotFound", headers=commit)
        disposition = f'inline; filename="{Path(path).name}";'
        headers = commit | {"Accept-Ranges": "bytes", "Content-Disposition": disposition}
        if not entry.lfs and not cached:
            # The Hub serves small files from an address of its own, which a client asks with its token.
            return Response(
                307,
                headers | {"Location": f"/api/resolve-cache/{known.kind}/{repo}/{snapshot.commit}/{quote(path)}"},
                b"",
            )
        if not entry.lfs:
            return Response(200, headers | {"ETag": f'"{entry.blob_id}"'}, FileSpan(entry.file, 0, entry.size))
        headers |= {
            "Location": f"{self.cdn_url}/cdn/{entry.sha256}/{repo}/{quote(path)}?Signature={sign(entry.sha256)}",
            "X-Linked-Size": str(entry.size),
            "X-Linked-ETag": f'"{entry.sha256}"',
        }
        return Response(302, headers)

    def _cdn(self, request: Request, sha256: str) -> Response:
        entry = self._blobs.get(sha256)
        if entry is None or request.query != f"Signature={sign(sha256)}":
            return Response(403)
        headers = {"Accept-Ranges": "bytes", "ETag": f'"{sha256}"'}
        return Response(200, headers, FileSpan(entry.file, 0, entry.size))

    def _info(self, repo: str, known: Repo, snapshot: Snapshot, query: dict[str, list[str]]) -> dict[str, Any]:
        """Return the properties that are named by `expand`, or all that a client here needs."""
        told = {
            "_id": snapshot.commit[:24], "id": repo, "sha": snapshot.commit, "private": known.private,
            "gated": "auto" if known.gated else False, "disabled": False, "tags": [], "downloads": 0, "likes": 0,
        }  # fmt: skip
        return {name: told[name] for name in ("_id", "id", *query.get("expand", told))}

"""A repository at one commit, as the Hub server lists it: from a folder, which is read (hashed) once.

Names come from content: a commit is the SHA-1 of the names, sizes and SHA-256 of its files; files have git's blob ids
(of the pointer, for large files, as on the Hub). Files are served from where they are; changing them breaks the commit.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

LFS_SUFFIXES = {".parquet", ".arrow", ".bin", ".gz", ".safetensors", ".tar", ".zip", ".zst"}
LFS_FROM_BYTES = 10_000_000
_HASHES: dict[tuple[str, int, int, bool], tuple[str, str]] = {}
"""(path, size, mtime in ns, large) -> (SHA-256, git's blob id), so that a file is read once in a process."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a snapshot."""

    file: str
    size: int
    sha256: str
    blob_id: str
    lfs: bool


@dataclass
class Snapshot:
    """One commit: its files by path."""

    commit: str
    files: dict[str, Entry]

    @cached_property
    def tree(self) -> dict[str, dict[str, Any]]:
        """Files and their folders, as the `tree` endpoint lists them. Most commits are never listed."""
        return tree_of(self.files)

    def list_folder(self, path: str, *, recursive: bool) -> list[dict[str, Any]]:
        """Return the entries below a folder."""
        prefix = f"{path}/" if path else ""
        below = [entry for entry in self.tree.values() if entry["path"].startswith(prefix)]
        return [entry for entry in below if recursive or "/" not in entry["path"][len(prefix) :]]


def snapshot_of(repo: str, folder: Path) -> Snapshot:
    """Return the commit that holds the folder's files."""
    files = {str(path.relative_to(folder)): hashed(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    return snapshot_from(repo, files)


def snapshot_from(repo: str, files: dict[str, Entry]) -> Snapshot:
    """Return the commit that holds these files."""
    files = dict(sorted(files.items()))
    lines = [f"{path} {entry.size} {entry.sha256}" for path, entry in files.items()]
    commit = hashlib.sha1("\n".join([repo, *lines]).encode()).hexdigest()
    return Snapshot(commit, files)


def hashed(path: Path) -> Entry:
    """Return a file's entry; reads it whole, once in a process."""
    real = path.resolve()
    stat = real.stat()
    lfs = is_lfs(path.name, stat.st_size)
    key = (str(real), stat.st_size, stat.st_mtime_ns, lfs)
    if key not in _HASHES:
        with real.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        _HASHES[key] = sha256, blob_id(pointer(sha256, stat.st_size) if lfs else real.read_bytes())
    return Entry(str(real), stat.st_size, *_HASHES[key], lfs)


def is_lfs(name: str, size: int) -> bool:
    """Return whether the Hub keeps a file of this name and size as a large one."""
    return Path(name).suffix in LFS_SUFFIXES or size >= LFS_FROM_BYTES


def pointer(sha256: str, size: int) -> bytes:
    """Return the pointer that git keeps instead of a large file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def blob_id(content: bytes) -> str:
    """Return git's id of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def tree_of(files: dict[str, Entry]) -> dict[str, dict[str, Any]]:
    """Return the entries of the tree endpoint, files and folders, by path in order."""
    tree: dict[str, dict[str, Any]] = {}
    for path, entry in files.items():
        tree[path] = {"type": "file", "oid": entry.blob_id, "size": entry.size, "path": path}
        if entry.lfs:
            tree[path]["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": 134}
        for parent in list(Path(path).parents)[:-1]:
            oid = hashlib.sha1(str(parent).encode()).hexdigest()
            tree[str(parent)] = {"type": "directory", "oid": oid, "size": 0, "path": str(parent)}
    return dict(sorted(tree.items()))

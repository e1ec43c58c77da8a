"""Compiles functions on arrays to machine code with numba, and keeps the code for later processes.

Only what is called from Python is kept, with all that it calls: in a folder whose name is a digest of every source file
of this package, so that no change of any of them runs old code. The folder lies in `NUMBA_CACHE_DIR`, else in
`$XDG_CACHE_HOME/tokenmill`, else in `~/.cache/tokenmill`. Where none can be written, each process compiles again.
numba itself distinguishes processors, and puts each file in its place whole: processes may compile side by side.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_njit, _config = cast("Any", numba).njit, cast("Any", config)  # numba's own types are incomplete


def compiled(function: FunctionT) -> FunctionT:
    """Compile a function that compiled functions call."""
    # Python calls none of these: without wrappers for it they are compiled sooner.
    return _njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def compiled_and_kept(function: FunctionT) -> FunctionT:
    """Compile a function that Python calls, or load what an earlier process has compiled; other threads run beside it.

    It is compiled when it is first called, for the types of its arguments.
    """
    before, folder = _config.CACHE_DIR, find_folder()
    try:
        _config.CACHE_DIR = folder  # read when the function is decorated
        return _njit(cache=bool(folder), nogil=True, error_model="numpy")(function)
    finally:
        _config.CACHE_DIR = before


def find_folder() -> str:
    """Return a folder for the code of this package's sources that can be written, "" if there is none."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    base = Path(os.environ.get("NUMBA_CACHE_DIR") or f"{home}/tokenmill").expanduser()
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    folder = base / f"measures-{digest.hexdigest()[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):  # no home, a full disk, a folder of somebody else
        return ""
    return str(folder)

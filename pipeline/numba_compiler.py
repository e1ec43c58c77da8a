"""The compiler numba: functions on arrays become machine code, which is kept for later processes.

Only what is called from Python is kept, with all that it calls: in a folder whose name is a digest of every source file
beside its own, so that no change of any of them runs old code. A compiled function calls compiled functions of its own
folder alone. The code is kept in `NUMBA_CACHE_DIR`, or else in `$XDG_CACHE_HOME/tokenmill`, or else in
`~/.cache/tokenmill`. If no folder can be written, each process compiles again. numba itself distinguishes its versions
and processors, and puts each file in its place whole: processes may compile side by side.

numba is imported when the first function is decorated, so that to ask what is kept does not load it.
"""

# pyright: reportUnknownMemberType=false

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from shards.errors import InputError
from shards.stores.files import check_own_folder

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def compiled(function: FunctionT) -> FunctionT:
    """Compile with numba a function that compiled functions of its folder call."""
    import numba

    # Python calls none of these: without wrappers for it they are compiled sooner.
    return cast("Any", numba).njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def compiled_and_kept(function: FunctionT) -> FunctionT:
    """Compile with numba a function that Python calls, or load the code that an earlier process has compiled.

    Other threads run meanwhile. It is compiled when it is first called, for the types of its arguments.
    """
    import numba
    from numba.core import config

    settings = cast("Any", config)  # numba's own types are incomplete
    before, folder = settings.CACHE_DIR, find_numba_folder(Path(function.__code__.co_filename).parent)
    try:
        settings.CACHE_DIR = folder  # read when the function is decorated
        return cast("Any", numba).njit(cache=bool(folder), nogil=True, error_model="numpy")(function)
    finally:
        settings.CACHE_DIR = before


def find_numba_folder(sources: Path) -> str:
    """Return a folder that can be written for numba's code of a folder of sources, "" if there is none."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        base = Path(os.environ.get("NUMBA_CACHE_DIR") or f"{home}/tokenmill").expanduser()
        folder = base / f"{sources.name}-{_digest_sources(sources)}"
        folder.mkdir(parents=True, exist_ok=True)
        check_own_folder(folder)  # numba runs what it finds there
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError, InputError):  # no home, a full disk, a folder of somebody else
        return ""
    return str(folder)


def is_to_compile(source: Path) -> bool:
    """Return whether numba has to compile a file of sources: this machine can keep the code, and has none yet."""
    folder = find_numba_folder(source.parent)
    return bool(folder) and next(Path(folder).rglob(f"{source.stem}.*nbc"), None) is None


@functools.cache
def _digest_sources(sources: Path) -> str:
    digest = hashlib.sha256()
    for path in [Path(__file__), *sorted(sources.glob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

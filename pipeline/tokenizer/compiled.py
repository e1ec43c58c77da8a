"""Compile functions with numba, and keep the compiled code between processes.

Compiling all functions of this folder takes 3 to 7 seconds, once on a machine and for each version of their files.
numba keeps the code in `__pycache__` next to the source, else in the user's cache folder or in `NUMBA_CACHE_DIR`. It
knows that code is out of date by the source file of the function alone, so a compiled function calls only `inner`
functions of its own file.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportCallIssue=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def entry(function: Function) -> Function:
    """Compile a function that Python calls; other threads run while it does."""
    try:
        return cast("Function", njit(nogil=True, cache=True)(function))
    except RuntimeError:  # there is no folder that numba may write to
        return cast("Function", njit(nogil=True)(function))


def inner(function: Function) -> Function:
    """Compile a function that only compiled functions of its file call: its code becomes part of theirs."""
    return cast("Function", njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function))

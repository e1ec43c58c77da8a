"""The program of a function's process: load a recipe's function, ask it about texts, and answer in plain values.

What a function returns or raises becomes a plain verdict or a fault here: no object of it reaches the build, nor does
what its `==`, `str` or `len` do. The program imports only what Python comes with, since the function's modules come
first; and it speaks JSON, a line each, by the socket that is its standard input.

It forks. The child asks the function; the parent, the guard, runs nothing of others. It ends the child, and all that it
has started, when the other side of the socket is closed, as it is when the process that asks has ended. The socket is
closed by the end of the guard: then all have ended.
"""

# pyright: reportUnknownVariableType=false
import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

Function: TypeAlias = Callable[[list[str]], Any]
"""What a recipe names: it takes texts and returns one value for each."""
Answer: TypeAlias = dict[str, Any]
"""`verdicts`, for each text: None if it stays, a list with the reason if it is dropped, or the new text. Or `fault` and
`index`: what is wrong, and with which text; an empty fault is none."""
Modules: TypeAlias = dict[str, tuple[str, str]]
"""The file and the text of each module of a function, by the module's name."""
_EXPECTED = (
    "Expected None or True to keep the text; False or (False, REASON) to drop it; or a new text, in valid UTF-8."
)
_CHANNEL = 200
"""The descriptor of the socket in the child: functions close low ones."""
_MOST_SHOWN = 1000
_HIDDEN = "something that cannot be shown"


def find_remedy(number: int) -> str:
    """Return what helps if a function fails on a number of texts, and on none of several alone."""
    if number == 1:
        return "Correct it, or drop such documents before it (min_bytes, drop_if_matches)."
    return (
        f"It fails on the {number:,} texts of the batch that begins here, but on none of them alone. A rule must "
        "decide on each text alone."
    )


def answer(function: Function, texts: list[str], files: Sequence[str] = ()) -> Answer:
    """Ask a function about texts; `files` are those of its own modules, for the fault of one that fails."""
    try:
        found = function(list(texts))
        verdicts = _list_verdicts(found)
    except BaseException as error:  # noqa: BLE001  (code of others)
        # Asked one by one, the text that fails is found.
        for index, text in enumerate(texts if len(texts) > 1 else ()):
            alone = answer(function, [text], files)
            if alone.get("fault", "").startswith("failed"):
                return {**alone, "index": index}
        return {"fault": f"failed: {_describe_error(error, files)}. {find_remedy(len(texts))}", "index": 0}
    if verdicts is None or len(verdicts) != len(texts):
        answers = f"{len(verdicts)} answer{'s' * (len(verdicts) != 1)}" if verdicts is not None else _show(found, 100)
        fault = f"returned {answers} for {len(texts):,} texts. Expected a list with one for each."
        return {"fault": fault, "index": 0}
    for index, verdict in enumerate(verdicts):
        try:
            plain = None if verdict is None or verdict is True else _make_plain(verdict)
            verdicts[index] = None if plain == texts[index] else plain
        except BaseException:  # noqa: BLE001  (an object of others)
            return {"fault": f"returned {_show(verdict, 200)}. {_EXPECTED}", "index": index}
    return {"verdicts": verdicts}


def _list_verdicts(found: Any) -> list[Any] | None:
    """Return what a function returned as a plain list, if it is a list, a tuple or an array; else None."""
    found = _unwrap(found)
    kinds: tuple[Any, Any] = (list, tuple)
    return next((list(kind.__iter__(found)) for kind in kinds if issubclass(type(found), kind)), None)


def _make_plain(verdict: Any) -> str | list[str] | None:
    """Return a verdict as an answer has it.

    Raises:
        ValueError: it is none.
    """
    if type(verdict) is str and verdict:  # the most frequent one first
        verdict.encode()
        return verdict
    verdict = _unwrap(verdict)
    if verdict is None or verdict is True:
        return None
    if verdict is False:
        return [""]
    if issubclass(type(verdict), str):
        text = str.__str__(verdict)
        text.encode()
        return text or [""]
    pair = _list_verdicts(verdict)
    if pair is not None and len(pair) == 2 and _unwrap(pair[0]) is False and issubclass(type(pair[1]), str):
        reason = str.__str__(pair[1])[:_MOST_SHOWN]
        reason.encode()
        return [reason]
    raise ValueError


def _unwrap(value: Any) -> Any:
    """Return an array or a number of numpy as a list or a value of Python, and others as they are.

    So are arrays of other kinds, such as masked ones: their values alone are not what they say.
    """
    numpy: Any = sys.modules.get("numpy")  # or a module of that name
    kind = type(value)
    is_plain = hasattr(numpy, "ndarray") and (kind is numpy.ndarray or issubclass(kind, numpy.generic))
    return value.tolist() if is_plain else value


def _show(value: Any, most: int) -> str:
    try:
        return f"{str.__str__(repr(value))[:most]} ({type(value).__name__})"
    except BaseException:  # noqa: BLE001  (an object of others)
        return _HIDDEN


def _describe_error(error: BaseException, files: Sequence[str]) -> str:
    """Return an error of a recipe's function, and the line of its modules that raised it."""
    try:
        place, trace = "", error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            place = f" ({file}, line {trace.tb_lineno})" if file in files else place
            trace = trace.tb_next
        return f"{type(error).__name__}: {error}"[:_MOST_SHOWN] + place
    except BaseException:  # noqa: BLE001  (an object of others)
        return _HIDDEN


def ask_datatrove(filter_: Any, texts: list[str]) -> list[Any]:
    """Return what a filter of datatrove says of each text, as a recipe's function says it."""
    from datatrove.data import Document
    from datatrove.pipeline.filters.base_filter import get_filter_result

    found: list[Any] = []
    for text in texts:
        document = Document(text=text, id="")
        kept, reason = get_filter_result(filter_.filter(document))
        found.append(document.text if kept else (False, reason or ""))
    return found


class _Finder:
    """Finds and loads the modules of a recipe's function by their text, before all others, as `sys.meta_path` asks."""

    def __init__(self, modules: Modules):
        self._modules = modules

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return a module's spec, if it is of a recipe's function."""
        if name not in self._modules:
            return None
        loader: Any = self
        return ModuleSpec(name, loader, is_package=self._modules[name][0].endswith("/__init__.py"))

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's text."""
        module.__file__, text = self._modules[module.__name__]
        exec(compile(text, module.__file__, "exec", dont_inherit=True), vars(module))


def _load(module: str, name: str, modules: Modules) -> Any:
    """Return a function of a module, loaded from the text of its modules, or what hinders that."""
    finder: Any = _Finder(modules)
    sys.meta_path.insert(0, finder)
    for own in modules:  # also one that is named like a module of Python
        sys.modules.pop(own, None)
    try:
        found: Any = getattr(import_module(module), name, None)
        if hasattr(found, "filter") and hasattr(found, "run"):  # a filter of datatrove
            return partial(ask_datatrove, found)
        return found if callable(found) else f": {module}.py has no function {name!r}. Add it, or correct the recipe."
    except BaseException as error:  # noqa: BLE001  (code of others)
        return f" cannot be imported: {_describe_error(error, [file for file, _ in modules.values()])}."


def _answer_all(own: int) -> None:
    """Load the function that the first line tells, and answer each further one: sizes of texts, whose bytes follow.

    So do those of new texts in an answer, and the end of a line.
    """
    asked, replies = (os.fdopen(_CHANNEL, mode, 1 << 20, closefd=False) for mode in ("rb", "wb"))
    (told,) = json.loads(asked.readline())
    found = _load(**told)
    reply: Answer = {"fault": found} if isinstance(found, str) else {"verdicts": [None]}
    files = [file for file, _ in told["modules"].values()]
    while os.getpid() == own:  # and not a process that the function has forked
        verdicts: list[Any] = reply.get("verdicts", [])
        changed = [(index, one.encode()) for index, one in enumerate(verdicts) if type(one) is str]
        for index, text in changed:
            verdicts[index] = len(text)
        head = json.dumps(reply, ensure_ascii=False).encode(errors="replace")
        replies.write(b"\n".join((head, b"".join(text for _, text in changed), b"")))
        replies.flush()
        texts = [str(asked.read(size), "utf-8") for size in json.loads(asked.readline())]
        reply = answer(found, texts, files)  # pyright: ignore[reportArgumentType]


def _guard(child: int) -> NoReturn:
    """Wait until the child or the other side ends, end all below this process, and exit as the child did."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # which a function may send
        signal.signal(number, signal.SIG_IGN)
    ends = select.poll()
    ends.register(0, select.POLLRDHUP)
    ends.register(os.pidfd_open(child), select.POLLIN)
    status, code, left = (0, 0), 0, [str(child)]
    while not status[0] and not ends.poll(1000):
        status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)  # one that is stopped never answers
    while True:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        try:
            ended, status = os.waitpid(-1, 0)
            code = os.waitstatus_to_exitcode(status) % 256 if ended == child else code
            left = Path("/proc/thread-self/children").read_text().split()
        except OSError:  # there are no more, or this system does not list them
            os._exit(code)


def main() -> None:
    """Fork, and be the guard, or load the function and ask it."""
    libc, guard = ctypes.CDLL(None), os.getpid()
    libc.prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what its parent leaves below this process becomes its child
    libc.prctl(1, signal.SIGCONT)  # PR_SET_PDEATHSIG: the guard goes on, which a function may have stopped
    child = os.fork()
    if child:
        _guard(child)
    try:
        os.setsid()
        libc.prctl(1, signal.SIGKILL)
        os.dup2(0, _CHANNEL, inheritable=False)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        if os.getppid() == guard:
            _answer_all(os.getpid())
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()

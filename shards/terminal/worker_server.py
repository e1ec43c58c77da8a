"""The module that the fork server loads first. Only it and the workers, which it forks, import it.

Workers ignore interrupts, which the program's own process handles. The server deletes the folder of its socket when it
ends: the program's process may have been killed, and could not. It collects no garbage: a collection goes through all
libraries while they are loaded, and in a worker it would copy their pages.
"""

import atexit
import gc
import os
import shutil
import signal
import sys
from types import TracebackType

gc.disable()
gc.set_threshold(200_000)  # of the workers, as in `tokenmill.__main__`: 0.01 s for each tokenizer that one loads
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # which `start_server` has blocked


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an error that ends a worker of the fork server, unless the program has ended while it began."""
    if not issubclass(kind, FileNotFoundError | EOFError):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _tell


def _end(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # Python would unload all libraries first: 0.2 s


if server_folder := os.environ.pop("TOKENMILL_FORK_SERVER_FOLDER", None):
    atexit.register(_end, server_folder)  # workers end by os._exit, which skips this

"""Run a command and say what it took: by the clock, and of the processor in all its processes, also orphaned ones.

    python tests/benchmarks/core_seconds.py FILE COMMAND ...

writes `{"seconds": ..., "core_seconds": ...}` to FILE and exits as the command did. A process whose parent ends first,
such as Python's fork server, is adopted by this one (Linux), which waits for it: what it used counts too.
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.perf_counter()
    status = subprocess.call(sys.argv[2:])
    seconds = time.perf_counter() - started
    with suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {"seconds": seconds, "core_seconds": used.ru_utime + used.ru_stime}
    Path(sys.argv[1]).write_text(json.dumps(figures))
    sys.exit(status)

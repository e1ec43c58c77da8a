"""The module that the fork server loads if a recipe has presets: the compiled measures, for all workers at once.

What this machine does not keep is left: the build compiles it, and says so (`compile_measures`).
"""

from pathlib import Path

import numpy as np

from pipeline.clean.measures.names import MEASURES
from pipeline.numba_compiler import is_to_compile

if not is_to_compile(Path(__file__).parent):
    from pipeline.clean.measures.families import measure_families

    found = np.empty((1, len(MEASURES)), np.float32)
    measure_families(np.frombuffer(b"a", np.uint8), np.array([0, 1]), np.ones(len(MEASURES), np.bool_), found)

"""The module that the fork server loads if a recipe names a tokenizer's file: its encoder, for all workers at once.

A file that cannot be used is left: the build says why.
"""

import gc
import os
from hashlib import sha256
from pathlib import Path

from pipeline.tokenizer.encoder import load_encoder

gc.disable()  # until `pipeline.engine.local_worker`, which is loaded last: 0.05 s

try:
    path = os.environ["TOKENMILL_TOKENIZER_TO_LOAD"]
    load_encoder(path, sha256(Path(path).read_bytes()).hexdigest(), None)
except BaseException:  # noqa: BLE001  what Rust raises when it panics is no Exception
    pass

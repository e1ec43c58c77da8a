"""The least that gives token ids: Parquet in, gigatoken, plain arrays out, in a few processes. A script of its own.

As a person writes it who knows gigatoken and wants to train today. It does not hash, sort, deduplicate, mix, shuffle,
compress, checksum or validate, and nothing tells afterwards where a document begins or came from.

    python tests/benchmarks/bare_script.py TOKENIZER.json OUT FILE.parquet... [--processes 2]

gigatoken reads Parquet itself, which is the fastest way.
"""

import argparse
from multiprocessing import Pool
from pathlib import Path

import gigatoken
import numpy as np

EOS = "<|endoftext|>"


def load(path):
    """Load the tokenizer, once a process."""
    global tokenizer, eos_id
    tokenizer = gigatoken.Tokenizer.from_json(Path(path).read_text())
    eos_id = tokenizer.encode(EOS)[0]


def encode_file(job):
    """Encode one file: its documents' tokens, EOS after each, as uint16."""
    source, target = job
    encoded = tokenizer.encode_files(gigatoken.ParquetFileSource([source], column="text"))
    ids, offsets = np.asarray(encoded.layout.content.data), np.asarray(encoded.layout.offsets)
    tokens = np.insert(ids, offsets[1:], eos_id).astype(np.uint16)
    tokens.tofile(target)
    return len(tokens)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer")
    parser.add_argument("out", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--processes", type=int, default=2)
    flags = parser.parse_args()
    flags.out.mkdir(parents=True)
    jobs = [(file, flags.out / f"{number:05d}.bin") for number, file in enumerate(flags.files)]
    with Pool(flags.processes, load, [flags.tokenizer]) as pool:
        print(sum(pool.imap_unordered(encode_file, jobs)))

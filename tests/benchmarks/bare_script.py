"""The least that gives token ids: Parquet in, gigatoken, plain arrays out, in two processes. A script of its own.

As a person writes it who knows gigatoken and wants to train today. It does not hash, sort, deduplicate, mix, shuffle,
compress, checksum or validate, and nothing tells afterwards where a document begins or came from.

    python tests/benchmarks/bare_script.py TOKENIZER.json OUT FILE.parquet... [--reader pyarrow]

gigatoken reads Parquet itself, which is the fastest way; `--reader pyarrow` reads with pyarrow and encodes lists of
texts, as a script does that looks at the rows first.
"""

import argparse
from multiprocessing import Pool
from pathlib import Path

import gigatoken
import numpy as np
import pyarrow.parquet as pq

EOS = "<|endoftext|>"


def load(path, reader):
    """Load the tokenizer, once a process."""
    global tokenizer, eos_id, read_with
    tokenizer = gigatoken.Tokenizer.from_json(Path(path).read_text())
    eos_id, read_with = tokenizer.encode(EOS)[0], reader


def encode_file(job):
    """Encode one file: its documents' tokens, EOS after each, as uint16."""
    source, target = job
    if read_with == "gigatoken":
        encoded = tokenizer.encode_files(gigatoken.ParquetFileSource([source], column="text"))
    else:
        encoded = tokenizer.encode_batch(pq.read_table(source, columns=["text"])["text"].to_pylist())
    ids, offsets = np.asarray(encoded.layout.content.data), np.asarray(encoded.layout.offsets)
    tokens = np.insert(ids, offsets[1:], eos_id).astype(np.uint16)
    tokens.tofile(target)
    return len(tokens)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer")
    parser.add_argument("out", type=Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--reader", default="gigatoken", choices=["gigatoken", "pyarrow"])
    flags = parser.parse_args()
    flags.out.mkdir(parents=True)
    jobs = [(file, flags.out / f"{number:05d}.bin") for number, file in enumerate(flags.files)]
    with Pool(2, load, [flags.tokenizer, flags.reader]) as pool:
        print(sum(pool.imap_unordered(encode_file, jobs)))

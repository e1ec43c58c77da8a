"""The comparison: datatrove's DocumentTokenizer and merger as a process of their own, tuned to be fast.

    python -m tests.benchmarks.datatrove_build --input FOLDER --tokenizer FILE --out FOLDER --tasks 4 --workers 2

Does what our build does from the same files: read parquet, encode, append EOS, shuffle documents, write token files of
a few million tokens. It neither removes duplicates, nor cuts by source, nor compresses, nor checks anything, so the
comparison favours it. The caller sets RAYON_NUM_THREADS=1: two processes with a thread pool each fight over two cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

EOS = "<|endoftext|>"


def main() -> None:
    """Tokenize with `--workers` processes, then merge in one, as datatrove's own examples do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--shard-tokens", type=int, default=5_000_000)
    args = parser.parse_args()
    build(args)


def build(args: argparse.Namespace) -> None:
    """Run both steps; datatrove's merger insists on a single task."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger

    out = Path(args.out)
    tokenized, merged = str(out / "tokenized"), str(out / "merged")
    encode = LocalPipelineExecutor(
        pipeline=[
            ParquetReader(args.input, glob_pattern="*.parquet", read_metadata=False, batch_size=args.batch_size),
            DocumentTokenizer(
                output_folder=tokenized,
                tokenizer_name_or_path=args.tokenizer,
                eos_token=EOS,
                batch_size=args.batch_size,
                max_tokens_per_file=None,
                shuffle_documents=True,
                save_final_metadata=True,
                seed=1337,
            ),
        ],
        tasks=args.tasks,
        workers=args.workers,
        logging_dir=str(out / "logs-tokenize"),
    )
    LocalPipelineExecutor(
        pipeline=[
            DocumentTokenizerMerger(
                input_folder=tokenized,
                output_folder=merged,
                save_filename="merged",
                max_tokens_per_file=args.shard_tokens,
                seed=1337,
                progress=False,
            )
        ],
        tasks=1,
        logging_dir=str(out / "logs-merge"),
        depends=encode,
    ).run()


if __name__ == "__main__":
    main()

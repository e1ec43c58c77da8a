"""The comparison: datatrove's DocumentTokenizer and merger as a process of their own, tuned to be fast.

    python tests/benchmarks/datatrove_build.py INPUT TOKENIZER OUT SHARD_TOKENS

Does what our build does from the same files: read parquet, encode, append EOS, shuffle documents, write token files of
a few million tokens. It neither removes duplicates, nor cuts by source, nor compresses, nor checks anything, so the
comparison favours it. The caller sets RAYON_NUM_THREADS=1: two processes with a thread pool each fight over two cores.
"""

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger

EOS = "<|endoftext|>"
WORKERS, BATCH = 2, 1000

if __name__ == "__main__":
    folder, tokenizer, out, shard_tokens = sys.argv[1:]
    encode = LocalPipelineExecutor(
        pipeline=[
            ParquetReader(folder, glob_pattern="*.parquet", read_metadata=False, batch_size=BATCH),
            DocumentTokenizer(
                output_folder=f"{out}/tokenized",
                tokenizer_name_or_path=tokenizer,
                eos_token=EOS,
                batch_size=BATCH,
                max_tokens_per_file=None,
                shuffle_documents=True,
                save_final_metadata=True,
                seed=1337,
            ),
        ],
        tasks=WORKERS,
        workers=WORKERS,
        logging_dir=f"{out}/logs-tokenize",
    )
    merger = DocumentTokenizerMerger(  # insists on a single task
        input_folder=f"{out}/tokenized",
        output_folder=f"{out}/merged",
        save_filename="merged",
        max_tokens_per_file=int(shard_tokens),
        seed=1337,
        progress=False,
    )
    LocalPipelineExecutor(pipeline=[merger], tasks=1, logging_dir=f"{out}/logs-merge", depends=encode).run()

"""datatrove: a folder per split, and in it for each shard `train_000000.ds` (tokens), `.ds.index`, `.ds.metadata`.

`.ds` is plain uint16 or uint32, no header. `.ds.index` is a uint64 for each document: the token after its last,
counted from the file's start. `.ds.metadata` is three lines: the tokenizer and bytes per token with a bar between, the
tokens, the same for people. `.ds.loss` (a byte a token) says what to leave out of the loss; nothing is, so it is not
written, as datatrove itself does by default. Its datasets read every `.ds` below their folder: give them one split's.

Source: huggingface/datatrove, pipeline/tokens/tokenizer.py's `TokenizedFile` and utils/dataset.py.
"""

from shards.convert.layouts.layout import OpenFile, SplitReader
from shards.format.document_table import iter_checked_documents

USAGE = 'DatatroveFolderDataset("{out}/{split}", seq_len=2048, token_size={token_size}, return_positions=True)'


def write_split(open_file: OpenFile, reader: SplitReader) -> None:
    """Write a split as datatrove's three files per shard."""
    for index, shard in enumerate(reader.shards):
        name = f"{reader.split}/{reader.split}_{index:06d}.ds"
        with open_file(name) as file:
            for tokens in reader.iter_shard_tokens(shard):
                file.write(tokens.data)
        with open_file(f"{name}.index") as file:
            for _, _, ends in iter_checked_documents(shard, []):
                file.write(ends.astype("<u8").data)
        count = shard.num_tokens
        with open_file(f"{name}.metadata") as file:
            file.write(
                f"../tokenizer.json|{reader.shard_set.dtype.itemsize}\n{count}\n{format_metric(count)}T".encode()
            )


def format_metric(count: int) -> str:
    """Return a count with three digits and an SI prefix, as datatrove's third line has it: 1300000 is `1.30 M`."""
    exponent = len(str(count)) - 1 if count else 0
    prefix = " kMGTPE"[exponent // 3].strip()
    return f"{count / 1000 ** (exponent // 3):.{2 - exponent % 3}f} {prefix}"

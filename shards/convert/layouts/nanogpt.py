"""nanoGPT: `train.bin` and `val.bin`, plain uint16 tokens, no header; a document ends at EOS.

nanoGPT memory-maps these files as uint16 whatever they hold, so a set of uint32 is refused. `meta.pkl` belongs to its
character-level examples and is not written: it is a pickle. Without it train.py makes a model of 50,304 entries, enough
for a smaller vocabulary; for a larger one, change that number there.

Source: karpathy/nanoGPT, data/openwebtext/prepare.py and train.py's `get_batch`.
"""

from shards.convert.layouts.layout import OpenFile, SplitReader

USAGE = 'np.memmap("{out}/{split}.bin", dtype=np.uint16, mode="r")'


def write_split(open_file: OpenFile, reader: SplitReader) -> None:
    """Write nanoGPT's `SPLIT.bin`."""
    with open_file(f"{reader.split}.bin") as file:
        for tokens in reader.iter_tokens():
            file.write(tokens.data)

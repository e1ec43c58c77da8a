"""The decoder, of two classes that differ only in their parts: `llama` and `gpt2`.

`attention` is what mixes positions, `decoder` the model around it, and `generate` continues texts with it and answers.
"""

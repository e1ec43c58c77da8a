"""The decoder, of two classes that differ only in their parts: `llama` and `gpt2`.

`attention` is what mixes positions, `decoder` the model around it, `size` its parameters and operations, and
`generate` continues texts with it.
"""

"""The commands of `python -m shards`: a module each, listed in `shards.__main__`.

A command's module has `add_command(commands)`, which describes its flags and sets `run`: a function from the parsed
options to an exit status. It loads numpy, pyarrow and the rest of `shards` inside `run` only, so that `--help` need
not wait for them. The work itself is done by a module of `shards` that knows nothing of flags.
"""

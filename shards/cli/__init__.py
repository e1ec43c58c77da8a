"""The commands that check, show, convert and share sets: a module each, in the frame of `shards.terminal.program`.

The work itself is done by a module of `shards` that knows nothing of flags.
"""

"""Weights to begin with, and weights to take elsewhere: of runs, of folders of transformers, as GGUF files."""

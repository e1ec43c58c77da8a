"""Thousands of hostile command lines, recipes, sets, runs and source files, drawn by seed: see `__main__`."""

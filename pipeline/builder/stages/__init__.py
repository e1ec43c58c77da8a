"""The stages of a build. Each function makes its stage's tasks, runs those that are missing, and returns the results.

A task's digest covers everything that determines its result: its part of the recipe, its inputs' digests, the
tokenizer's bytes, and the versions of our code and of the libraries that matter.
"""

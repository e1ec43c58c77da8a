"""Eval tasks: items with a question, choices and an answer, by which a model is judged.

A training run scores the items, and a build finds the documents that hold them: both read the same descriptions here.
"""

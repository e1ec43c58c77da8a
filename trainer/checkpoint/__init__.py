"""Checkpoints: one folder each, written whole or not at all, checked by checksum before it is used, never unpickled.

    checkpoints/step-00000100/
        model.safetensors       weights, under transformers' names
        optimizer.safetensors   each parameter's state, as `<state>.<parameter>`
        state.json              step, samples, recipe, digests of the data that the run reads
        checksums.json          xxh3-128 of each of these: against accidents, at 10 GB/s while a GPU waits for the save

A checkpoint is written to a temporary folder, synced to disk and renamed. Then older ones beyond `keep_last` are
deleted; if that fails, the next process does it. Bit rot and half-written copies are detected, named, and moved aside
as `corrupt-step-...`. Tensors are saved whole even if they were split over ranks, so that a run may go on with another
number of ranks. No step draws a random number: no generator is saved.

`folders` finds, reads and checks checkpoints without torch, `tensors` writes and reads their tensors.
"""

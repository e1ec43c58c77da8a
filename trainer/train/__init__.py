"""Training: `loop` goes from step to step and stops, `step` takes one, `faults` judges its loss."""

"""Training: `loop` goes from step to step and stops, `step` takes one, `loss_checks` judges its loss."""

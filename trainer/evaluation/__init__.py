"""What a model is worth: loss on the validation split, and scores of eval sets and eval tasks."""

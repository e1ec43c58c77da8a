"""Results of training runs: read from their folders, compared, drawn."""

"""Phases: `ledger` of a run's own, `mix` those of its set's mix in the metrics, `pins` the one to the other."""

"""How fast orch is, as ratios against something else in the same run. ``python -m benchmarks.run`` runs them all."""

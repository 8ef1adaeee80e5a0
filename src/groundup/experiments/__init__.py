"""Sweeps and ablations, and reports that compare runs."""

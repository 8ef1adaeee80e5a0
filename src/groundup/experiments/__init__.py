"""Sweeps, and reports that compare runs."""

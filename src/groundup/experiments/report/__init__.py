"""Runs compared on one HTML page: tables and learning curves."""

"""Reports: one HTML page that compares runs with tables and learning curves."""

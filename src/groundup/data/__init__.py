"""Files to shards to batches: reading corpora, writing the built-in one, fetching public ones."""

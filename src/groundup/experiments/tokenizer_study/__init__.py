"""Tokenizers on corpora: measured, drawn, and written down as a page or as Markdown."""

"""Runs compared on a page: tables, curves and words, as HTML or Markdown."""

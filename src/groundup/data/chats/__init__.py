"""Conversations to learn answers from: JSON lines (`reading`), ids with the answers marked
(`encoding`), and rows of several that a batch is made of (`packing`). No torch here."""

"""The laboratory: runs started in sets, and what their folders say when they are compared."""

"""Training on many devices and machines; the rest of the package does not know how many."""

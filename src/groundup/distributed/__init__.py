"""Training on several devices and machines, behind interfaces independent of their number."""

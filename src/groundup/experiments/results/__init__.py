"""What run folders say: figures, outcome, cost, and runs that differ by their seed as one."""

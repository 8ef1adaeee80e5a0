"""What run folders say: metrics, outcome, cost, and runs that differ by their seed as one."""

"""Which strategy to use on a cluster: every candidate is simulated, the table is ranked."""

"""Blame, scored: faults that are known, and what a job's own verdict makes of them."""

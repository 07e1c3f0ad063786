"""Transports of the simulated network: TCP and its like, as state machines over packets."""

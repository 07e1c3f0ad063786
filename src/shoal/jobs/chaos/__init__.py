"""Faults in small jobs of real processes: who is struck, in which phase, and what became of all."""

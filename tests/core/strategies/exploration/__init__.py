"""Random histories of jobs whose members change: see `exploration.history`."""

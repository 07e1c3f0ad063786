"""What adapters of frameworks without torch stand on: means and groups of NumPy arrays."""

"""Strategies around a torch optimizer, and the model in memory that they work on."""

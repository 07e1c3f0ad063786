"""The bench room of Shoal."""

"""The cli room of Shoal."""

"""The jobs room of Shoal."""

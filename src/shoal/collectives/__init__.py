"""The collectives room of Shoal."""

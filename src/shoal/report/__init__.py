"""The report room of Shoal."""

"""The runtime room of Shoal."""

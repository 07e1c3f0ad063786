"""The groups room of Shoal."""

"""The train room of Shoal."""

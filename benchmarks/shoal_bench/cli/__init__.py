"""The commands `shoal bench` and `shoal reproduce`."""

"""Hosts as namespaces, joined by the software switch: what packets meet."""

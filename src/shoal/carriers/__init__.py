"""Communicators, which carry what strategies exchange: over gloo, and over the wire."""

"""Transports over simulated packets: state machines that react to arrivals and timers."""

"""Whether a lab does what its spec says: measured with real packets, judged by closed forms."""

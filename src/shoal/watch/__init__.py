"""What a job shows of itself: who is slow, which way loses packets, metrics."""

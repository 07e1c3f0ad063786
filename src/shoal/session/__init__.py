"""A job as one worker sees it: joining, what its transport stands on, leaving."""

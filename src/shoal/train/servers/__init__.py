"""Parameter servers: the shards that workers serve, and what they say to each other."""

"""Parameter servers: the shards that workers serve, and the messages between them."""

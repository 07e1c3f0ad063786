"""The network as flows that share its links fairly: no packets, no queues."""

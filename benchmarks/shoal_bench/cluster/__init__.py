"""`shoal bench cluster`: the same training by every contender, across the lab's emulated networks.

Scenarios say what is wrong with the network or a worker, contenders how a library is used. Each
pair is a job of its own: fresh processes on fresh hosts, and one fabric for all their packets.
"""

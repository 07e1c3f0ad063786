"""Trials of the cluster suite: a fixed number of steps, with what switches and transports count.

Where the suite asks who gets to a target first, these take Shoal apart: what each mechanism of DLCP
does to steps and packets, and what grouping does on networks with a bottleneck.
"""

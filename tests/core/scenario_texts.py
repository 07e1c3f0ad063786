"""Scenarios as people write them, for the tests."""

SMALL = """\
seed = 3

[hosts]
count = 2
workers = 2

[access]
rate = "1 Gbit/s"
delay = "10 us"

[training]
parameters = 100_000
compute = "20 ms"
spread = 0.1
steps = 12

[[training.slow]]
rank = 1
factor = 3

[[training.strategy]]
sync = "all-reduce"

[[training.strategy]]
sync = "ripples"
group_size = 2
label = "pairs"
"""

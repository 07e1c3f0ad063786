"""A cluster on one machine: a network namespace for each host, joined by an emulated fabric.

Packets cross a software switch that decides with `switching`, in real time. Any program runs on it.
"""

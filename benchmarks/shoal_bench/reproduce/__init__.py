"""The papers' tables again, from simulations: their numbers, ours, and what differs."""

"""Workers that train in virtual time: what they compute, exchange and wait for."""

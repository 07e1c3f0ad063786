"""A whole job in one process, under one seed: time, threads, sockets and machines are simulated."""

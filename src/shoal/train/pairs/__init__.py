"""AD-PSGD: pairs that average beside computing, and the copies that they average."""

"""One file per data set: which raw files it needs, who has them, and how they become arrays."""

"""The workloads room of Shoal."""

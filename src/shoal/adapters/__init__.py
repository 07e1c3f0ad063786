"""Shoal under other frameworks' interfaces: the torch.distributed backend and its like."""

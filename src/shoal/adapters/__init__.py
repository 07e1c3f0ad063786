"""Shoal under other frameworks' interfaces.

`torch_backend` registers the backend "shoal" of torch.distributed, `ddp` is a hook of DDP,
`lightning` a strategy of Lightning, `torchft` a process group of torchft's; `tensorflow`, `jax` and
`mxnet` are for those frameworks, over `arrays`, which needs none of them.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)

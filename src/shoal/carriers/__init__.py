"""Communicators, which carry what strategies exchange, and what they stand on.

`torch_communicator` goes over gloo, `transport_communicator` over the wire; both keep the contract
of `shoal.comm`. Torch's private names are in `torch_private` alone.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)

"""The bounded-loss transport, decisions only: tables, datagrams and what follows from them.

Pure: no socket, no clock, no thread. The per-packet functions are compiled by numba and called by
the socket loop (`wire`) as by the tests' and the simulator's virtual links. Start reading
with `tables` (the state), then `receiving`, `answers` and `sending` (the protocol), `operations`
(how a collective is a graph of messages) and `wire` (the datagram).

Implements DLCP/MLT (docs/papers.md, 1.4 to 1.8).
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)

"""The transport on real sockets.

`opening` makes an engine for a rank; `engine` has lanes with a thread each (`lane`), in which the
compiled loop (`pump`) moves datagrams between sockets and `shoal.transport`.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)

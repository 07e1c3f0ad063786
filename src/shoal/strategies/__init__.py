"""The strategies of Shoal: definitions, and courses that the runtime and the simulator share.

A core: decisions only. Other rooms enter by the names below, by the acts of courses
(`strategies.acts`) and by the machine of a server's shard (`strategies.shard`).
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)

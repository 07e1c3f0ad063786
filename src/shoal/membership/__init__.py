"""The members of a job, and why they changed: a core. Other rooms enter by the names below."""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)

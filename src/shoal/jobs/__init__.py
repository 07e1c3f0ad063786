"""Runs on this machine: worker processes, their training loop, and results.

`spec` says what is to run, `training_run` starts the processes and collects, `training` is what
each of them does, `result` is the file that is left.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)

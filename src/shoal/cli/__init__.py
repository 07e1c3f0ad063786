"""The command line: reads arguments, environment and files, prints. Decides nothing.

Data goes to standard output, everything else to standard error. A deliberate error is one sentence
and its documented exit code (docs/exit-codes.md), never a traceback.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)

"""What a cluster is to be, and what is to be trained on it: values, and reading them from TOML.

`spec_file` reads files; `cluster_spec` and `training_spec` are what they say.
"""

from shoal.faces import face

__getattr__, __dir__ = face(__name__)

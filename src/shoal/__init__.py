"""Shoal: data-parallel training that keeps moving on slow networks and with slow workers.

Importing this package loads no torch and starts nothing; names that need torch are loaded when they
are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.errors import (
        DataError,
        DeadlineExceeded,
        MismatchError,
        ProtocolError,
        ResourceError,
        ShoalError,
        UsageError,
        WorkerLost,
    )
    from shoal.groups.topology import Topology
    from shoal.session.numpy_communicator import connect
    from shoal.session.session import init, shutdown
    from shoal.train.all_reduce import AllReduce
    from shoal.train.ds_sync import DSSync
    from shoal.train.local_sgd import LocalSGD
    from shoal.train.optimizer import DistributedOptimizer
    from shoal.train.pairs.ad_psgd import ADPSGD
    from shoal.train.ripples import Ripples, RipplesRandom
    from shoal.train.ripples_static import RipplesStatic
    from shoal.train.servers.parameter_server import ParameterServer

__version__ = "0.1.0"

_HOME = {
    "ADPSGD": "shoal.train.pairs.ad_psgd",
    "AllReduce": "shoal.train.all_reduce",
    "DSSync": "shoal.train.ds_sync",
    "DataError": "shoal.errors",
    "DeadlineExceeded": "shoal.errors",
    "DistributedOptimizer": "shoal.train.optimizer",
    "LocalSGD": "shoal.train.local_sgd",
    "MismatchError": "shoal.errors",
    "ParameterServer": "shoal.train.servers.parameter_server",
    "ProtocolError": "shoal.errors",
    "ResourceError": "shoal.errors",
    "Ripples": "shoal.train.ripples",
    "RipplesRandom": "shoal.train.ripples",
    "RipplesStatic": "shoal.train.ripples_static",
    "ShoalError": "shoal.errors",
    "Topology": "shoal.groups.topology",
    "UsageError": "shoal.errors",
    "WorkerLost": "shoal.errors",
    "connect": "shoal.session.numpy_communicator",
    "init": "shoal.session.session",
    "shutdown": "shoal.session.session",
}

__all__ = [
    "ADPSGD",
    "AllReduce",
    "DSSync",
    "DataError",
    "DeadlineExceeded",
    "DistributedOptimizer",
    "LocalSGD",
    "MismatchError",
    "ParameterServer",
    "ProtocolError",
    "ResourceError",
    "Ripples",
    "RipplesRandom",
    "RipplesStatic",
    "ShoalError",
    "Topology",
    "UsageError",
    "WorkerLost",
    "__version__",
    "connect",
    "init",
    "shutdown",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from shoal.extras import install

        message = f"shoal.{name} needs PyTorch: {install('torch')}."
        raise ImportError(message) from error

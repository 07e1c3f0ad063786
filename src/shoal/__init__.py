"""Shoal: data-parallel training that keeps moving on slow networks and with slow workers.

Importing this package loads no torch and starts nothing; names that need torch are loaded when they
are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.adapters.arrays.generated_groups import GeneratedGroups
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
    from shoal.lab.lab import Lab
    from shoal.scenario.spec_file import read_scenario, read_spec
    from shoal.session.numpy_communicator import connect
    from shoal.session.session import Session, init, shutdown
    from shoal.sim.training.simulation import simulate
    from shoal.strategies import (
        ADPSGD,
        AllReduce,
        DSSync,
        HierarchicalSGD,
        LocalSGD,
        ParameterServer,
        Ripples,
        RipplesRandom,
        RipplesStatic,
    )
    from shoal.trace import ListSink, Sample, Span, SpanKind, TraceHeader, TraceSink
    from shoal.train.optimizer import DistributedOptimizer
    from shoal.watch.remarks import Remark
    from shoal.wire.stats import TransportStats

__version__ = "0.1.0"

_HOME = {
    "ADPSGD": "shoal.strategies",
    "AllReduce": "shoal.strategies",
    "DSSync": "shoal.strategies",
    "DataError": "shoal.errors",
    "DeadlineExceeded": "shoal.errors",
    "DistributedOptimizer": "shoal.train.optimizer",
    "GeneratedGroups": "shoal.adapters.arrays.generated_groups",
    "HierarchicalSGD": "shoal.strategies",
    "Lab": "shoal.lab.lab",
    "ListSink": "shoal.trace",
    "LocalSGD": "shoal.strategies",
    "MismatchError": "shoal.errors",
    "ParameterServer": "shoal.strategies",
    "ProtocolError": "shoal.errors",
    "Remark": "shoal.watch.remarks",
    "ResourceError": "shoal.errors",
    "Ripples": "shoal.strategies",
    "RipplesRandom": "shoal.strategies",
    "RipplesStatic": "shoal.strategies",
    "Sample": "shoal.trace",
    "Session": "shoal.session.session",
    "ShoalError": "shoal.errors",
    "Span": "shoal.trace",
    "SpanKind": "shoal.trace",
    "Topology": "shoal.groups.topology",
    "TraceHeader": "shoal.trace",
    "TraceSink": "shoal.trace",
    "TransportStats": "shoal.wire.stats",
    "UsageError": "shoal.errors",
    "WorkerLost": "shoal.errors",
    "connect": "shoal.session.numpy_communicator",
    "init": "shoal.session.session",
    "read_scenario": "shoal.scenario.spec_file",
    "read_spec": "shoal.scenario.spec_file",
    "shutdown": "shoal.session.session",
    "simulate": "shoal.sim.training.simulation",
}

__all__ = [
    "ADPSGD",
    "AllReduce",
    "DSSync",
    "DataError",
    "DeadlineExceeded",
    "DistributedOptimizer",
    "GeneratedGroups",
    "HierarchicalSGD",
    "Lab",
    "ListSink",
    "LocalSGD",
    "MismatchError",
    "ParameterServer",
    "ProtocolError",
    "Remark",
    "ResourceError",
    "Ripples",
    "RipplesRandom",
    "RipplesStatic",
    "Sample",
    "Session",
    "ShoalError",
    "Span",
    "SpanKind",
    "Topology",
    "TraceHeader",
    "TraceSink",
    "TransportStats",
    "UsageError",
    "WorkerLost",
    "__version__",
    "connect",
    "init",
    "read_scenario",
    "read_spec",
    "shutdown",
    "simulate",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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

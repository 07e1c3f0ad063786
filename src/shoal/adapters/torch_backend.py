"""Registering the backend "shoal" with torch.distributed, and opening its transport.

`register` is an entry point of torch (`torch.backends`), called whenever torch is imported, so it
must stay cheap: what the backend needs is imported when a process group is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from shoal.runtime.udp.engine import UdpEngine

_engine: UdpEngine | None = None


def register() -> None:
    """Make "shoal" known to torch.distributed; quietly do nothing where torch has none."""
    import torch.distributed as dist

    if dist.is_available() and "SHOAL" not in dist.Backend._plugins:  # noqa: SLF001 - registering twice raises
        dist.Backend.register_backend("shoal", _create, extended_api=True, devices=["cpu"])


def current_engine() -> UdpEngine:
    """Return the transport of this process's process groups, for its counters.

    Raises `UsageError` before `init_process_group("shoal")`.
    """
    from shoal.errors import UsageError

    if _engine is None:
        raise UsageError("Call init_process_group('shoal') first.")
    return _engine


def _create(options: Any, _backend_options: Any) -> ProcessGroup:
    """Return the process group that torch asks for; the first one opens the transport."""
    global _engine  # noqa: PLW0603 - one transport per process, as torch has one default group
    from shoal.adapters.torch_process_group import ShoalProcessGroup
    from shoal.runtime.udp.group import TransportGroup
    from shoal.runtime.udp.settings import from_environment

    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    first = _engine is None or _engine.is_closed
    if first:
        _engine = _open(options)
    engine = _engine
    assert engine is not None
    stream = _agree_on_stream(options, engine)
    sums = from_environment().sums
    if not first:  # subgroups do not have whole hosts
        sums = replace(sums, algorithm="direct")
    group = TransportGroup(engine, ranks, stream, deadline_s=options.timeout.total_seconds())
    return ShoalProcessGroup(engine, group, sums=sums, owns_engine=first)


def _open(options: Any) -> UdpEngine:
    """Open this rank's transport and join the others through torch's store.

    Raises `MismatchError` if the ranks' messages would not fit each other.
    """
    import msgspec

    from shoal.runtime.metrics import serve_if_asked
    from shoal.runtime.udp.engine import Card, UdpEngine
    from shoal.runtime.udp.settings import from_environment

    settings = from_environment()
    engine = UdpEngine(
        options.group_rank,
        options.group_size,
        settings.transport,
        deadline_s=options.timeout.total_seconds(),
        bind=settings.bind,
        advertise=settings.advertise,
        ports=settings.ports,
    )
    shown = (engine.card, settings.sums.algorithm, settings.sums.wire)
    options.store.set(f"card/{options.group_rank}", msgspec.msgpack.encode(shown))
    cards = [
        msgspec.msgpack.decode(options.store.get(f"card/{rank}"), type=tuple[Card, str, str | None])
        for rank in range(options.group_size)
    ]
    try:
        _check_sums([(algorithm, wire) for _, algorithm, wire in cards])
        engine.start([card for card, _, _ in cards])
        serve_if_asked(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def _check_sums(asked: Sequence[tuple[str, str | None]]) -> None:
    """Raise `MismatchError` unless all ranks make sums alike: else they wait for each other."""
    from shoal.errors import MismatchError

    said = [f"SHOAL_ALL_REDUCE={name} and SHOAL_WIRE={wire or '(none)'}" for name, wire in asked]
    for rank, text in enumerate(said):
        if text != said[0]:
            message = (
                f"Rank {rank} has {text} but rank 0 has {said[0]}: set them alike on every rank."
            )
            raise MismatchError(message)


def _agree_on_stream(options: Any, engine: UdpEngine) -> int:
    """Return a stream number that no other group of this job uses; the same on all members."""
    from shoal.runtime.udp.group import stream_of

    if options.group_rank == 0:
        stream = stream_of("group", engine.endpoint.rank, engine.next_stream())
        options.store.set("stream", str(stream))
    return int(options.store.get("stream"))

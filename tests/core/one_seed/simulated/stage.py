"""What stands in for the rest of the world while histories run, and Shoal's modules in it.

Owns which names of theirs are replaced, and the control plane's processes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace

import shoal.control.__main__ as control_main
from shoal.control import JobKey
from shoal.control.key import CurvePair
from shoal.control.process import Orders
from shoal.control.terms import terms_of
from shoal.errors import ResourceError
from simulated import data_plane, stand_ins
from simulated.stand_ins import Os, Pipe, Time
from simulated.world import Process, world

if TYPE_CHECKING:
    from shoal.membership import View

DEADLINE_S = 6.0


class Key(JobKey):
    """A job key whose pairs cost nothing to derive."""

    __slots__ = ()

    def server_pair(self) -> CurvePair:
        return _PAIR

    client_pair = server_pair


_PAIR = CurvePair(b"public", b"secret")
KEY = Key("the key of a simulated job")


class ControlProcess:
    """`control.ControlProcess`: the service's own loop, in a process of the world."""

    def __init__(self, process: Process, pipe: Pipe, endpoint: str, orders: Orders) -> None:
        self.process, self._pipe, self.endpoint = process, pipe, endpoint
        self._orders = orders
        process.owner.at_death.append(self.abandon)  # type: ignore[union-attr]

    @classmethod
    def start(cls, *, view: View, min_members: int | None = None, **given: Any) -> ControlProcess:
        terms = terms_of(view, given["liveness_timeout_s"], min_members, given["quorum"])
        return cls._start(Orders("127.0.0.1", 0, KEY.reveal(), terms, view))

    @classmethod
    def stand_by(cls, keeper: int, **given: Any) -> ControlProcess:
        orders = Orders(
            given["host"],
            given["port"],
            KEY.reveal(),
            given["terms"],
            keeper=keeper,
        )
        return cls._start(orders)

    @classmethod
    def _start(cls, orders: Orders) -> ControlProcess:
        here, owner, pipe = world(), world().process, Pipe()
        process = Process(here, owner.host, f"control of {owner.name}", owner)
        found: list[Any] = []

        def serve() -> None:
            Time.sleep(here.random.uniform(0.0, 0.3))  # loading
            try:
                service = control_main._service(orders)
            except ResourceError as error:
                found.append(error)
                return
            found.append(service.endpoint)
            service.run(pipe)  # type: ignore[arg-type]
            service.close()
            process.die()

        here.spawn(process, serve, process.name)
        here.block(lambda: found or process.is_dead)
        if not found or isinstance(found[0], ResourceError):
            raise found[0] if found else ResourceError("The process has ended.")
        return cls(process, pipe, found[0], orders)

    def again(self) -> ControlProcess:
        port = int(self.endpoint.rpartition(":")[2])
        return self._start(replace(self._orders, port=port, view=None))

    @property
    def is_running(self) -> bool:
        return not self.process.is_dead

    def stop(self) -> None:
        self._pipe.text += b"stop\n"
        self._pipe.wake()

    def kill(self) -> None:
        self.process.die()

    def abandon(self) -> None:
        self._pipe.is_shut = True
        self._pipe.wake()


def bind(router: stand_ins.Socket, _host: str, port: int) -> str:
    """Bind as `control.server_socket.bind` does: each process at an address of its host."""
    network = stand_ins.network()
    if not port:
        network.num_ports += 1
        port = network.num_ports
    endpoint = f"tcp://10.0.0.{router.process.host.number}:{port}"
    try:
        router.bind(endpoint)
    except stand_ins.real_zmq.ZMQError as error:
        raise ResourceError("That port is in use.") from error
    return endpoint


def _host_name() -> str:
    return f"host {world().process.host.number}"


def _addresses(_environment: object) -> Any:
    here = f"10.0.0.{world().process.host.number}"
    return SimpleNamespace(interfaces=[SimpleNamespace(advertise=here)])


@contextmanager
def simulated() -> Iterator[None]:
    """Let Shoal's modules run in worlds: to be entered once for many histories."""
    also = {
        "shoal.control.service.os": Os(),
        "shoal.control.service.start_authenticator": lambda *_: SimpleNamespace(stop=lambda: None),
        "shoal.control.service.make_router": lambda context, _: context.socket(
            stand_ins.real_zmq.ROUTER
        ),
        "shoal.control.service.bind": bind,
        "shoal.control.service.recv_monitor_message": stand_ins.recv_monitor_message,
        "shoal.control.connection.recv_monitor_message": stand_ins.recv_monitor_message,
        "shoal.control.__main__.JobKey": lambda _: KEY,
        "shoal.session.services.ControlProcess": ControlProcess,
        "shoal.session.services.from_environment": _addresses,
        "shoal.session.session.socket": SimpleNamespace(gethostname=_host_name),
        "shoal.session.joining.socket": SimpleNamespace(gethostname=_host_name),
        "shoal.session.services.addresses_of": lambda _: [],
        "shoal.session.engine_share.share_engine": data_plane.share_engine,
        "shoal.session.engine_share.communicator_over": data_plane.Communicator,
        "shoal.session.transport_alone.open_engine": data_plane.open_engine,
        "shoal.session.session.open_apart": data_plane.open_apart,
        "shoal.session.session.close_aside": data_plane.close_aside,
        "shoal.session.ways.close_aside": data_plane.close_aside,
        "shoal.session.session.current_session": lambda: world().process.session,
        "shoal.session.leaving.current_session": lambda: world().process.session,
        "shoal.session.leaving.shutdown": lambda: world().process.session.close(),  # noqa: PLW0108
        "shoal.train.state_memory._LARGE_BYTES": 8,  # so that donors share what a small model has
        "shoal.train.state_memory._PIECE_BYTES": 8,
        "shoal.strategies.shard_places.UPDATES_PER_COPY": 3,
        "shoal.train.optimizer.current_session": lambda: world().process.session,
    }
    flight = os.environ.get("SHOAL_FLIGHT_DIR")
    os.environ["SHOAL_FLIGHT_DIR"] = "0"  # thousands of workers end in errors
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with stand_ins.in_place_of_the_real_ones(also):
            yield
    finally:
        os.environ.pop("SHOAL_FLIGHT_DIR")
        if flight is not None:
            os.environ["SHOAL_FLIGHT_DIR"] = flight
        logging.disable(disabled)
        torch.set_num_threads(threads)

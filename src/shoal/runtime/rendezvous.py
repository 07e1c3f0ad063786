"""Meeting the other ranks without torch: everyone hands in a card and gets everyone's back.

Rank 0 serves at MASTER_ADDR for as long as that takes. Owns the exchange and its errors; the
connections are the control plane's (CURVE with the job key), so strangers neither read nor join.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

import msgspec
import zmq

import shoal
from shoal.errors import MismatchError, ResourceError, ShoalError, UsageError
from shoal.runtime.control.key import JobKey
from shoal.runtime.control.server_socket import bind, make_router, resolve, start_authenticator
from shoal.runtime.launch import read_master

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOCAL_KEY = "one machine, no secret to keep"
"""Used on loopback when no job key is given: whoever reaches it runs on this machine anyway."""

_POLL_S = 0.1


_TORCHRUN_PORTS: Final = 4
"""Under torchrun nobody has set the ports after MASTER_PORT aside: one of so many will be free."""


class _Arrival(msgspec.Struct, frozen=True):
    meeting: int
    """The first port that this job may meet at: another job's may be among its others."""
    rank: int
    world_size: int
    version: str
    card: bytes


class _Answer(msgspec.Struct, frozen=True):
    cards: list[bytes]
    error: str = ""


def exchange_cards(rank: int, world_size: int, card: bytes, *, deadline_s: float) -> list[bytes]:
    """Return the cards of all ranks, in order; blocks until all have handed theirs in.

    Raises `UsageError` without the variables that say where to meet, `MismatchError` if ranks
    disagree on version, number or job key, `ResourceError` if some do not come in time.
    """
    host, ports = meeting_place(os.environ)
    key = job_key(os.environ, host)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = _Server(context, key, host, ports, world_size, deadline_s) if rank == 0 else None
    try:
        return _hand_in(
            context,
            key,
            (host, ports),
            _Arrival(ports[0], rank, world_size, shoal.__version__, card),
            deadline_s,
        )
    finally:
        if server is not None:
            server.close()
        context.destroy(linger=500)


def meeting_place(environment: Mapping[str, str]) -> tuple[str, range]:
    """Return the host at which rank 0 serves, and the ports: at the first that is free.

    Under torchrun its own store sits at MASTER_PORT, so it is one of the next ones; SHOAL_PORT
    overrides both.
    """
    if environment.get("SHOAL_PORT"):
        host, port = read_master(environment, port="SHOAL_PORT")
    elif environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        host, port = read_master(environment, highest=65535 - _TORCHRUN_PORTS)
        return host, range(port + 1, port + 1 + _TORCHRUN_PORTS)
    else:
        host, port = read_master(environment)
    return host, range(port, port + 1)


def job_key(environment: Mapping[str, str], host: str) -> JobKey:
    """Return the key in SHOAL_JOB_KEY; if that is not set and `host` is loopback, a known one.

    Raises `UsageError` if another machine could reach `host`, or if it has no address.
    """
    text = environment.get("SHOAL_JOB_KEY")
    if text:
        return JobKey(text)
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except OSError as error:
        message = f"The host {host!r} cannot be resolved: {error.strerror}."
        raise UsageError(message) from error
    if not ipaddress.ip_address(str(address).partition("%")[0]).is_loopback:
        raise UsageError(
            "Set SHOAL_JOB_KEY to the same random text of at least 16 characters on every machine:"
            " it keeps strangers out of the job."
        )
    return JobKey(_LOCAL_KEY)


def _hand_in(
    context: zmq.Context[zmq.Socket[bytes]],
    key: JobKey,
    place: tuple[str, range],
    arrival: _Arrival,
    deadline_s: float,
) -> list[bytes]:
    """Hand in a card wherever rank 0 may serve; return what it answers."""
    host, ports = place
    poller = zmq.Poller()
    with ExitStack() as open_sockets:
        for port in ports:
            dealer = open_sockets.enter_context(context.socket(zmq.DEALER))
            _call(dealer, key, resolve(host), port)
            dealer.send(msgspec.msgpack.encode(arrival))
            poller.register(dealer, zmq.POLLIN)
        # A little longer than the server waits, whose answer says who is missing.
        answering = poller.poll(round((deadline_s + 1) * 1000))
        if not answering:
            message = (
                f"Rank 0 did not answer at {host}:{ports[0]} within {deadline_s:g} s: check"
                " that it runs, MASTER_ADDR, the port, and that all have the same SHOAL_JOB_KEY."
            )
            raise ResourceError(message)
        answer = msgspec.msgpack.decode(answering[0][0].recv(), type=_Answer)
    if answer.error:
        raise MismatchError(answer.error)
    return answer.cards


def _call(dealer: zmq.Socket[bytes], key: JobKey, address: str, port: int) -> None:
    """Connect to a service that has the job's key. What it has not taken in does not matter."""
    pair = key.client_pair()
    dealer.curve_serverkey = key.server_pair().public
    dealer.curve_publickey, dealer.curve_secretkey = pair.public, pair.secret
    dealer.linger = 0
    dealer.ipv6 = ":" in address
    shown = f"[{address}]" if dealer.ipv6 else address
    dealer.connect(f"tcp://{shown}:{port}")


def _bind_to_one(router: zmq.Socket[bytes], host: str, ports: range) -> None:
    """Bind to the first of `ports` that is free. Raises `ResourceError` if none is."""
    for port in ports[:-1]:
        with suppress(ResourceError):
            bind(router, host, port)
            return
    bind(router, host, ports[-1])


class _Server:
    """Rank 0's service: collects the arrivals and answers all of them at once."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        key: JobKey,
        host: str,
        ports: range,
        world_size: int,
        deadline_s: float,
    ) -> None:
        self._authenticator = start_authenticator(context, key)
        self._router = make_router(context, key)
        self._world_size, self._meeting = world_size, ports[0]
        try:
            _bind_to_one(self._router, host, ports)
        except ShoalError:
            self._authenticator.stop()
            raise
        self._deadline = time.monotonic() + deadline_s
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="shoal-rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._stopping = True
        self._thread.join()
        self._router.close(500)
        self._authenticator.stop()

    def _serve(self) -> None:
        arrived: dict[int, tuple[bytes, _Arrival]] = {}
        error = ""
        while not error and len(arrived) < self._world_size and not self._stopping:
            if time.monotonic() > self._deadline:
                missing = sorted(set(range(self._world_size)) - arrived.keys())
                error = f"Ranks {missing} did not come in time."
            elif self._router.poll(round(_POLL_S * 1000)):
                identity, *rest = self._router.recv_multipart()
                try:
                    arrival = msgspec.msgpack.decode(b"".join(rest), type=_Arrival)
                except msgspec.MsgspecError:
                    self._refuse(identity)
                    continue
                if arrival.meeting != self._meeting:
                    continue  # another job's, which has a service of its own
                error = self._objection(arrival, arrived)
                arrived[arrival.rank] = (identity, arrival)
        cards = [] if error else [arrived[rank][1].card for rank in range(self._world_size)]
        answer = msgspec.msgpack.encode(_Answer(cards, error))
        for identity, _ in arrived.values():
            self._router.send_multipart([identity, answer])

    def _refuse(self, identity: bytes) -> None:
        """Answer somebody who has the key but says nothing that makes sense here."""
        text = f"Rank 0 runs version {shoal.__version__} of Shoal and does not understand this rank"
        answer = _Answer([], f"{text}; install the same version everywhere.")
        self._router.send_multipart([identity, msgspec.msgpack.encode(answer)])

    def _objection(self, new: _Arrival, arrived: Mapping[int, object]) -> str:
        if new.version != shoal.__version__:
            return (
                f"Rank {new.rank} runs version {new.version} of Shoal and rank 0"
                f" {shoal.__version__}; install the same one everywhere."
            )
        if new.world_size != self._world_size or not 0 <= new.rank < self._world_size:
            return (
                f"Rank {new.rank} was told of {new.world_size} ranks and rank 0 of"
                f" {self._world_size}; start all with the same WORLD_SIZE."
            )
        if new.rank in arrived:
            return f"Two processes say that they are rank {new.rank}; give each its own RANK."
        return ""

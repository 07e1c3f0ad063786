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
from typing import TYPE_CHECKING

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


class _Arrival(msgspec.Struct, frozen=True):
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
    host, port = meeting_place(os.environ)
    key = job_key(os.environ, host)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server = _Server(context, key, host, port, world_size, deadline_s) if rank == 0 else None
    try:
        return _hand_in(
            context,
            key,
            (host, port),
            _Arrival(rank, world_size, shoal.__version__, card),
            deadline_s,
        )
    finally:
        if server is not None:
            server.close()
        context.destroy(linger=500)


def meeting_place(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the host and port at which rank 0 serves.

    Under torchrun its own store sits at MASTER_PORT, so the next one is taken; SHOAL_PORT overrides
    both.
    """
    if environment.get("SHOAL_PORT"):
        return read_master(environment, port="SHOAL_PORT")
    host, port = read_master(environment, highest=65534)
    return host, port + (environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True")


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
    place: tuple[str, int],
    arrival: _Arrival,
    deadline_s: float,
) -> list[bytes]:
    with context.socket(zmq.DEALER) as dealer:
        pair = key.client_pair()
        dealer.curve_serverkey = key.server_pair().public
        dealer.curve_publickey, dealer.curve_secretkey = pair.public, pair.secret
        dealer.linger = 500
        address = resolve(place[0])
        dealer.ipv6 = ":" in address
        shown = f"[{address}]" if dealer.ipv6 else address
        dealer.connect(f"tcp://{shown}:{place[1]}")
        dealer.send(msgspec.msgpack.encode(arrival))
        # A little longer than the server waits, whose answer says who is missing.
        if not dealer.poll(round((deadline_s + 1) * 1000)):
            message = (
                f"Rank 0 did not answer at {place[0]}:{place[1]} within {deadline_s:g} s: check"
                " that it runs, MASTER_ADDR, the port, and that all have the same SHOAL_JOB_KEY."
            )
            raise ResourceError(message)
        answer = msgspec.msgpack.decode(dealer.recv(), type=_Answer)
    if answer.error:
        raise MismatchError(answer.error)
    return answer.cards


class _Server:
    """Rank 0's service: collects the arrivals and answers all of them at once."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        key: JobKey,
        host: str,
        port: int,
        world_size: int,
        deadline_s: float,
    ) -> None:
        self._authenticator = start_authenticator(context, key)
        self._router = make_router(context, key)
        self._world_size = world_size
        try:
            bind(self._router, host, port)
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

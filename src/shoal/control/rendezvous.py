"""Meeting the other ranks without torch: each rank hands in a card and gets all cards back.

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
from typing import TYPE_CHECKING, Final, Self

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

import shoal
from shoal.control.card_difference import name_ranks
from shoal.control.key import JobKey, given_key
from shoal.control.server_socket import (
    Advice,
    bind,
    make_router,
    resolve,
    start_authenticator,
)
from shoal.decoding import decode_msgpack
from shoal.errors import (
    DataError,
    DeadlineExceeded,
    MismatchError,
    ResourceError,
    ShoalError,
    UsageError,
    of_code,
)
from shoal.launch import read_master

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOCAL_KEY = "one machine, no secret to keep"
"""The key that is used on loopback when no job key is given: any program that reaches it runs on
this machine anyway."""

_POLL_S = 0.1

_TORCHRUN_PORTS: Final = 4
"""The number of ports after MASTER_PORT that are tried under torchrun, which does not reserve any:
one of so many will be free."""

_FAILED: Final = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_EVENTS: Final = _FAILED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CLOSED
_REFUSALS: Final = 4
"""The number of failed handshakes in a row, a few tenths of a second, that mean another job key: a
service that has just served its last meeting causes one or two and is gone."""

_OTHER_KEY: Final = zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC


class _Arrival(msgspec.Struct, frozen=True):
    meeting: int
    """The first port that this job may meet at: another job's may be among its others."""
    rank: int
    num_ranks: int
    version: str
    card: bytes


class _Answer(msgspec.Struct, frozen=True):
    cards: list[bytes]
    error: str = ""
    code: int = MismatchError.exit_code
    """The exit code of the error, which says what kind it is."""


def exchange_cards(rank: int, num_ranks: int, card: bytes, *, deadline_s: float) -> list[bytes]:
    """Return the cards of all ranks, in order; blocks until all have handed theirs in.

    Raises `UsageError` without the variables that say where to meet, `MismatchError` if ranks
    disagree on version, number or job key, `DeadlineExceeded` if some do not come in time,
    `ResourceError` if rank 0 cannot serve there.
    """
    host, ports = meeting_place(os.environ)
    key = job_key(os.environ, host)
    with ExitStack() as stack:
        if rank == 0:
            stack.enter_context(CardServer(key, host, ports, num_ranks, deadline_s))
        return hand_in(key, (host, ports), rank, num_ranks, card, deadline_s)


def hand_in(
    key: JobKey,
    place: tuple[str, range],
    rank: int,
    num_ranks: int,
    card: bytes,
    deadline_s: float,
) -> list[bytes]:
    """Hand in a card to the `CardServer` at a host and one of some ports; return all cards.

    Raises the errors of `exchange_cards`.
    """
    arrival = _Arrival(place[1][0], rank, num_ranks, shoal.__version__, card)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        return _hand_in(context, key, place, arrival, deadline_s)
    finally:
        context.destroy(linger=500)


def meeting_place(environment: Mapping[str, str]) -> tuple[str, range]:
    """Return the host at which rank 0 serves, and the ports, of which it takes the first free one.

    Under torchrun its own store sits at MASTER_PORT, so rank 0 takes one of the next ports;
    SHOAL_PORT overrides both.
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
    if (text := given_key(environment)) is not None:
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
    """Hand in a card at each port at which rank 0 may serve; return its answer."""
    host, ports = place
    address = resolve(host)
    # A little longer than the server waits, whose answer names the missing ranks.
    end = time.monotonic() + deadline_s + 1
    poller = zmq.Poller()
    with ExitStack() as open_calls:
        calls = [open_calls.enter_context(_Call(context, key, address, port)) for port in ports]
        for call in calls:
            call.dealer.send(msgspec.msgpack.encode(arrival))
            poller.register(call.dealer, zmq.POLLIN)
            poller.register(call.events, zmq.POLLIN)
        while True:
            left = end - time.monotonic()
            ready = dict(poller.poll(round(min(max(0.0, left), _POLL_S) * 1000)))
            answering = next((call.dealer for call in calls if call.dealer in ready), None)
            if answering is not None:
                break
            refusing = [call.port for call in calls if call.is_refused()]
            # Of several ports, some may be another job's: rank 0 may yet come to the next one.
            if left <= 0 or len(refusing) == len(ports):
                raise _nobody_answers(host, ports, refusing, deadline_s)
        answer = decode_msgpack(
            answering.recv(),
            _Answer,
            f"What answers at {host} for rank 0 is not understood",
            "install the same version of Shoal everywhere",
            MismatchError,
        )
    if answer.error:
        raise of_code(answer.code, answer.error)
    return answer.cards


def _nobody_answers(
    host: str, ports: range, refusing: list[int], deadline_s: float
) -> MismatchError | DeadlineExceeded:
    """Return the error of a rank that has met, not rank 0, but strangers at ports `refusing`."""
    if refusing:
        return MismatchError(
            f"What answers at {host}:{refusing[0]} has another job key, or is no rank 0 of Shoal's:"
            " start every worker with the same SHOAL_JOB_KEY, and one job per address."
        )
    return DeadlineExceeded(
        f"Rank 0 did not answer at {host}:{ports[0]} within {deadline_s:g} s: check that it runs,"
        " MASTER_ADDR and the port."
    )


class _Call:
    """A connection to a service that has the job's key, at one port; a context manager."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], key: JobKey, address: str, port: int
    ) -> None:
        self.port = port
        self.dealer = dealer = context.socket(zmq.DEALER)
        pair = key.client_pair()
        dealer.curve_serverkey = key.server_pair().public
        dealer.curve_publickey, dealer.curve_secretkey = pair.public, pair.secret
        dealer.linger = 0  # unsent messages do not matter
        dealer.ipv6 = ":" in address
        self.events = dealer.get_monitor_socket(_EVENTS)
        self._refusals = 0
        shown = f"[{address}]" if dealer.ipv6 else address
        dealer.connect(f"tcp://{shown}:{port}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.dealer.disable_monitor()
        self.events.close(0)
        self.dealer.close(0)

    def is_refused(self) -> bool:
        """Whether the service there refuses this job's key, time after time."""
        while self.events.poll(0):
            has_failed = recv_monitor_message(self.events)["event"] & _FAILED
            self._refusals = self._refusals + 1 if has_failed else 0
        return self._refusals >= _REFUSALS


def _bind_to_one(router: zmq.Socket[bytes], host: str, ports: range) -> str:
    """Bind to the first of `ports` that is free, and return the endpoint.

    Raises `ResourceError` if none is free.
    """
    variable = "SHOAL_PORT" if os.environ.get("SHOAL_PORT") else "MASTER_PORT"
    in_use = (
        "another process may have RANK=0 as well, or another program the port; give each process"
        f" a RANK of its own, or all of them a free port in {variable}"
    )
    if len(ports) > 1:
        in_use = f"as are all from {ports[0]} on; set SHOAL_PORT to a free one for every worker"
    advice = Advice(in_use, "MASTER_ADDR must be one of the machine on which rank 0 runs")
    for port in ports[:-1]:
        with suppress(ResourceError):
            return bind(router, host, port, advice)
    return bind(router, host, ports[-1], advice)


class CardServer:
    """Rank 0's service: collects the arrivals and answers all of them at once; a context manager.

    Serves at the first of `ports` that is free, or at any if that is 0.
    """

    def __init__(
        self,
        key: JobKey,
        host: str,
        ports: range,
        num_ranks: int,
        deadline_s: float,
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator = start_authenticator(self._context, key)
        self._router = make_router(self._context, key)
        self._strangers = self._router.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        self._num_ranks, self._deadline_s = num_ranks, deadline_s
        try:
            endpoint = _bind_to_one(self._router, host, ports)
        except ShoalError:
            self._authenticator.stop()
            self._context.destroy(linger=0)
            raise
        self.port = int(endpoint.rpartition(":")[2])
        """The port at which it serves."""
        self._ports = ports if ports[0] else range(self.port, self.port + 1)
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="shoal-rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._stopping = True
        self._thread.join()
        self._router.disable_monitor()
        self._strangers.close(0)
        self._router.close(500)
        self._authenticator.stop()
        self._context.destroy(linger=500)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def _serve(self) -> None:
        callers: list[bytes] = []
        arrived: dict[int, _Arrival] = {}
        error: ShoalError | None = None
        deadline = time.monotonic() + self._deadline_s
        while error is None and len(arrived) < self._num_ranks and not self._stopping:
            if time.monotonic() > deadline:
                error = self._lateness(sorted(set(range(self._num_ranks)) - arrived.keys()))
            elif self._router.poll(round(_POLL_S * 1000)):
                identity, *rest = self._router.recv_multipart()
                try:
                    arrival = decode_msgpack(b"".join(rest), _Arrival, "No arrival")
                except DataError:
                    self._refuse(identity)
                    continue
                if arrival.meeting != self._ports[0]:
                    continue  # another job's, which has a service of its own
                error = self._objection(arrival, arrived)
                callers.append(identity)
                arrived[arrival.rank] = arrival
        if self._stopping:
            return
        cards = [] if error else [arrived[rank].card for rank in range(self._num_ranks)]
        said = _Answer(cards) if error is None else _Answer(cards, str(error), error.exit_code)
        answer = msgspec.msgpack.encode(said)
        for identity in callers:
            self._router.send_multipart([identity, answer])

    def _lateness(self, missing: list[int]) -> ShoalError:
        """Return the error of a meeting to which the ranks `missing` have not come in time."""
        late = f"{name_ranks(missing)} did not come within {self._deadline_s:g} s"
        # Where several ports are tried, jobs call at each other's: refusals mean nothing then.
        if len(self._ports) == 1 and self._has_refused():
            return MismatchError(
                f"{late}, but somebody with another job key: start every worker with the same"
                " SHOAL_JOB_KEY."
            )
        return DeadlineExceeded(
            f"{late}: check that every worker runs and has the same MASTER_ADDR."
        )

    def _has_refused(self) -> bool:
        """Whether a worker with another job's key has called."""
        while self._strangers.poll(0):
            if recv_monitor_message(self._strangers)["value"] == _OTHER_KEY:
                return True
        return False

    def _refuse(self, identity: bytes) -> None:
        """Answer a caller that has the key but whose message is not understood."""
        text = f"Rank 0 runs version {shoal.__version__} of Shoal and does not understand this rank"
        answer = _Answer([], f"{text}; install the same version everywhere.")
        self._router.send_multipart([identity, msgspec.msgpack.encode(answer)])

    def _objection(self, new: _Arrival, arrived: Mapping[int, object]) -> MismatchError | None:
        if new.version != shoal.__version__:
            return MismatchError(
                f"Rank {new.rank} runs version {new.version} of Shoal and rank 0"
                f" {shoal.__version__}; install the same one everywhere."
            )
        if new.num_ranks != self._num_ranks or not 0 <= new.rank < self._num_ranks:
            return MismatchError(
                f"Rank {new.rank} was told of {new.num_ranks} ranks and rank 0 of"
                f" {self._num_ranks}; start all with the same WORLD_SIZE."
            )
        if new.rank in arrived:
            return MismatchError(
                f"Two processes say that they are rank {new.rank}; give each its own RANK."
            )
        return None

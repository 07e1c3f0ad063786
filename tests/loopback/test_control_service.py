"""Service and clients over real sockets in one process: keys, losses, garbage, clean endings."""

from __future__ import annotations

import os
import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from control_handlers import service_of
from shoal.control import ControlClient, JobKey
from shoal.control.messages import (
    MAX_FRAME_BYTES,
    DumpRequest,
    Heartbeat,
    Rejected,
    Reply,
    Welcome,
    WorkerState,
    decode_reply,
    encode,
)
from shoal.control.service import STOP_COMMAND
from shoal.control.terms import terms_of
from shoal.errors import (
    DeadlineExceeded,
    MismatchError,
    ProtocolError,
    ResourceError,
    UsageError,
    WorkerLost,
)
from shoal.groups import GeneratorConfig
from shoal.membership import View

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = JobKey("the key of this test job")
CONFIG = GeneratorConfig()
DEADLINE_S = 20.0


class Losses(queue.SimpleQueue[WorkerLost]):
    """Collects what a client's `on_lost` is called with."""

    def next(self) -> WorkerLost:
        return self.get(timeout=DEADLINE_S)


class Service:
    """A service that runs in a thread of this process."""

    def __init__(self, world_size: int, timeout_s: float = 60.0) -> None:
        self.service = service_of(KEY, View.first(world_size), timeout_s)
        self.endpoint = self.service.endpoint
        self._read_fd, self._write_fd = os.pipe()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def client(self, rank: int, on_lost: Any = lambda lost: None, **options: Any) -> ControlClient:
        options = {"key": KEY, "deadline_s": DEADLINE_S, "on_lost": on_lost, **options}
        return ControlClient(self.endpoint, rank=rank, **options)

    def end(self, command: bytes) -> None:
        """Tell the service to stop, or with no command, let it lose its owner."""
        if self._thread.is_alive():
            if command:
                os.write(self._write_fd, command)
            os.close(self._write_fd)
            self._thread.join(DEADLINE_S)
            os.close(self._read_fd)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self.service.run(self._read_fd)
        self.service.close()


@contextmanager
def serving(world_size: int, timeout_s: float = 60.0) -> Iterator[Service]:
    service = Service(world_size, timeout_s)
    try:
        yield service
    finally:
        service.end(STOP_COMMAND)


@contextmanager
def raw_socket(endpoint: str, key: JobKey | None = KEY) -> Iterator[zmq.Socket[bytes]]:
    """A DEALER that says whatever the test wants."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    if key is not None:
        pair = key.client_pair()
        dealer.curve_serverkey = key.server_pair().public
        dealer.curve_publickey, dealer.curve_secretkey = pair.public, pair.secret
    dealer.rcvtimeo = int(DEADLINE_S * 1000)
    dealer.connect(endpoint)
    try:
        yield dealer
    finally:
        dealer.close(0)
        context.term()


def ask(dealer: zmq.Socket[bytes], payload: bytes) -> Reply:
    dealer.send(payload)
    return decode_reply(dealer.recv())


def test_workers_join_ask_leave_and_finish() -> None:
    with serving(3) as service, ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        clients = [stack.enter_context(service.client(rank)) for rank in range(3)]
        for client in clients:
            client.join("run", 0, CONFIG, 7)
        groups = list(pool.map(lambda client: client.request_group("run", 0), clients))
        assert groups[0].members == (0, 1, 2)
        assert groups == [groups[0]] * 3
        assert clients[0].generator_counters("run")["groups_started"] == 1
        assert clients[0].generator_counters("run", 8)["max.staleness"] == 0
        assert clients[0].generator_counters("no such run") == {}
        assert clients[1].requests_by_rank("run") == {0: 1, 1: 1, 2: 1}
        assert clients[1].requests_by_rank("no such run") == {}
        for client in clients:
            client.leave("run")
        dump = clients[0].dump()
        assert dump.sessions == ()
        assert [worker.state for worker in dump.workers] == [WorkerState.ALIVE] * 3
        assert dump.rejected == {}


def test_the_service_outlives_a_session_and_takes_the_next() -> None:
    with serving(1) as service, service.client(0) as client:
        for name in ("one", "two"):
            client.join(name, 0, CONFIG, 7)
            assert client.request_group(name, 0).members == (0,)
            client.leave(name)


def test_a_wrong_job_key_is_noticed_at_once() -> None:
    with serving(1) as service:
        with pytest.raises(MismatchError, match="has another job key: start every worker"):
            service.client(0, key=JobKey("a key of another job"), deadline_s=3600.0)
        with service.client(0) as client:
            assert client.dump().strangers >= 1


def test_the_service_key_alone_does_not_let_a_client_in() -> None:
    """The handshake must also prove the clients' key, which the service checks by itself."""
    with serving(1) as service, raw_socket(service.endpoint) as dealer:
        stranger = zmq.curve_keypair()
        other = dealer.context.socket(zmq.DEALER)
        other.curve_serverkey = KEY.server_pair().public
        other.curve_publickey, other.curve_secretkey = stranger
        events = other.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        other.connect(service.endpoint)
        assert events.poll(DEADLINE_S * 1000)
        other.disable_monitor()
        events.close(0)
        other.close(0)


def test_a_client_does_not_trust_a_service_without_the_key() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.curve_server = True
    router.curve_publickey, router.curve_secretkey = zmq.curve_keypair()
    port = router.bind_to_random_port("tcp://127.0.0.1")
    with pytest.raises(MismatchError, match="another job key"):
        ControlClient(f"tcp://127.0.0.1:{port}", KEY, 0, 3600.0, lambda lost: None)
    router.close(0)
    context.term()


def test_nobody_at_the_address_ends_at_the_deadline() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(DeadlineExceeded, match="No control plane answered rank 4"):
            ControlClient(endpoint, KEY, 4, 0.05, lambda lost: None)


def test_a_rank_is_given_once_and_exists() -> None:
    with serving(2) as service, service.client(1):
        with pytest.raises(MismatchError, match="Rank 1 is already connected"):
            service.client(1)
        with pytest.raises(MismatchError, match="There is no rank 2 in a job of 2"):
            service.client(2)


def test_workers_with_other_options_do_not_join() -> None:
    with serving(2) as service, service.client(0) as first, service.client(1) as second:
        first.join("run", 0, CONFIG, 1)
        with pytest.raises(MismatchError, match="group_size=5 where rank 0 has group_size=3"):
            second.join("run", 0, GeneratorConfig(group_size=5), 1)


def test_asking_without_joining_is_a_mistake_that_says_so() -> None:
    with (
        serving(1) as service,
        service.client(0) as client,
        pytest.raises(ProtocolError, match="No session 'run' is open"),
    ):
        client.request_group("run", 0)


def test_a_wait_that_ends_at_the_deadline_says_who_was_missing() -> None:
    with serving(3) as service, service.client(1) as other, service.client(2) as third:
        for client in (other, third):
            client.join("run", 0, CONFIG, 1)
        with service.client(0, deadline_s=0.2) as client:
            client.join("run", 0, CONFIG, 1)
            with pytest.raises(DeadlineExceeded) as caught:
                client.request_group("run", 7)
            assert str(caught.value) == (
                "Rank 0 waited 0.2 s for its group at step 7 without an answer: a worker is slower"
                " than the deadline allows, or hangs."
                " Ranks 1 and 2 did not ask for a group in that time."
            )
            third.leave("run")
            assert other.request_group("run", 0).members == (0, 1)
            # The late answer to rank 0 must not pass for that to another question of its own.
            with pytest.raises(DeadlineExceeded):
                client.request_group("run", 8)
            assert client.dump().sessions[0].waiting == ()


def test_a_vanished_worker_is_lost_to_those_who_wait_and_those_who_do_not() -> None:
    losses = Losses()
    with serving(3) as service, service.client(0) as waiting, service.client(1, losses.put) as busy:
        for client in (waiting, busy):
            client.join("run", 0, CONFIG, 1)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(waiting.request_group, "run", 0)
            with raw_socket(service.endpoint) as dealer:
                assert isinstance(ask(dealer, encode(Heartbeat(2))), Welcome)
            error = answer.exception(DEADLINE_S)
        for lost in (error, losses.next()):
            assert isinstance(lost, WorkerLost)
            assert lost.rank == 2
            assert str(lost).startswith("Rank 2 closed its connection unexpectedly")
        with pytest.raises(WorkerLost, match="Rank 2"):
            busy.request_group("run", 0)
        assert busy.dump().workers[2].state is WorkerState.LOST
        assert losses.empty()


def test_a_silent_worker_is_lost_and_a_computing_one_is_not() -> None:
    losses = Losses()
    with serving(2, timeout_s=0.4) as service, service.client(0, losses.put) as client:
        with raw_socket(service.endpoint) as dealer:
            ask(dealer, encode(Heartbeat(1)))  # and not another word, while rank 0 only waits
            lost = losses.next()
        assert lost.rank == 1
        assert "silent for more than 0.4 s" in str(lost)
        assert client.dump().workers[0].state is WorkerState.ALIVE


def test_failures_reach_the_others_but_not_oneself() -> None:
    mine, theirs = Losses(), Losses()
    with (
        serving(3) as service,
        service.client(0, mine.put) as reporter,
        service.client(1, theirs.put),
        service.client(2),
    ):
        assert reporter.report_failure("it broke", culprit=2)
        assert str(theirs.next()) == "Rank 0 reports rank 2: it broke"
        assert str(mine.next()) == "Rank 0 reports rank 2: it broke"
        assert reporter.report_failure("x" * 10_000)
        assert theirs.next().rank == 0
        assert mine.empty()


def test_a_failure_may_be_reported_from_within_on_lost() -> None:
    losses, confirmed = Losses(), Losses()
    clients: list[ControlClient] = []

    def on_lost(lost: WorkerLost) -> None:
        assert not clients[0].report_failure("then I stop as well")
        confirmed.put(lost)

    with serving(3) as service, service.client(1, losses.put), service.client(2) as failing:
        clients.append(service.client(0, on_lost))
        with clients[0]:
            failing.report_failure("it broke")
            assert confirmed.next().rank == 2
            assert [losses.next().rank, losses.next().rank] == [2, 0]


def test_a_client_may_be_closed_while_another_thread_still_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("client", "questions"):
        monkeypatch.setattr(f"shoal.control.{module}._CLOSING_S", 0.5)
    with serving(2) as service, service.client(1) as other, ThreadPoolExecutor(1) as pool:
        other.join("run", 0, CONFIG, 1)
        client = service.client(0, deadline_s=1.0)
        client.join("run", 0, CONFIG, 1)
        answer = pool.submit(client.request_group, "run", 0)
        while not other.dump().sessions[0].waiting:
            pass
        client.close()
        assert isinstance(answer.exception(DEADLINE_S), DeadlineExceeded)
        assert client._questions._context.closed
        with pytest.raises(UsageError, match="has left the job"):
            client.dump()


def test_an_exception_in_the_with_block_is_reported_and_a_loss_is_not() -> None:
    losses = Losses()
    with serving(3) as service, service.client(0, losses.put):
        with pytest.raises(WorkerLost), service.client(1):
            raise WorkerLost("somebody else's fault", 2)
        with pytest.raises(ZeroDivisionError), service.client(2):
            raise ZeroDivisionError("my fault")
        assert str(losses.next()) == "Rank 2 gave up: ZeroDivisionError: my fault"
        assert losses.empty()


def test_the_end_of_the_owner_is_the_loss_of_rank_0() -> None:
    losses = Losses()
    with serving(2) as service:
        client = service.client(1, losses.put)
        client.join("run", 0, CONFIG, 1)
        service.end(b"")
        lost = losses.next()
        assert lost.rank == 0
        assert "process of rank 0, which keeps the control plane, has ended" in str(lost)
        assert losses.next().rank is None  # and then the connection closes
        with pytest.raises(WorkerLost):
            client.request_group("run", 0)
        assert not client.report_failure("too late to tell")
        client.close()


def test_a_stopped_service_tells_those_who_are_still_there() -> None:
    losses = Losses()
    with serving(2) as service:
        finished, there = service.client(0), service.client(1, losses.put)
        finished.close()
        service.end(STOP_COMMAND)
        assert "was stopped while workers were still there" in str(losses.next())
        there.close()


def test_garbage_from_a_holder_of_the_key_is_answered_and_counted() -> None:
    rng = Random(2)
    with serving(2) as service, service.client(0) as client:
        with raw_socket(service.endpoint) as dealer:
            for _ in range(2_000):
                reply = ask(dealer, rng.randbytes(rng.randrange(60)))
                assert isinstance(reply, Rejected)
            dealer.send_multipart([b"two", b"frames"])
            reply = decode_reply(dealer.recv())
            assert isinstance(reply, Rejected)
            assert "this one has 2" in reply.reason
        assert client.dump().rejected == {"malformed": 2_001}


def test_what_is_too_long_costs_the_sender_its_connection_and_nobody_else() -> None:
    with serving(1) as service, service.client(0) as client:
        with raw_socket(service.endpoint) as dealer:
            events = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            dealer.send(bytes(MAX_FRAME_BYTES + 1))
            assert events.poll(DEADLINE_S * 1000)
            dealer.disable_monitor()
            events.close(0)
        assert client.dump().rejected == {}


def test_a_connection_without_encryption_gets_no_answer() -> None:
    with serving(1) as service, service.client(0) as client:
        with raw_socket(service.endpoint, key=None) as dealer:
            dealer.send(encode(DumpRequest()))
            events = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            assert events.poll(DEADLINE_S * 1000)
            assert not dealer.poll(0)
            dealer.disable_monitor()
            events.close(0)
        assert client.dump().handled == 1


def test_another_protocol_at_the_port_is_hung_up_on() -> None:
    with serving(1) as service, service.client(0) as client:
        host, port = service.endpoint.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), DEADLINE_S) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            with suppress(ConnectionResetError):
                while plain.recv(1000):  # a greeting, then the end
                    pass
        assert client.dump().handled == 1


def test_nothing_is_left_running() -> None:
    def count() -> tuple[int, int]:
        return threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for _ in range(3):
        with serving(2) as service, service.client(0) as client, service.client(1):
            client.join("run", 0, CONFIG, 0)
            client.close()
            client.close()
        with serving(1) as service, pytest.raises(MismatchError):
            service.client(0, key=JobKey("a key of another job"))
    assert count() == before


def test_addresses_that_cannot_be_had() -> None:
    def start(**options: Any) -> None:
        service_of(KEY, View.first(1), 1.0, **options).close()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=rf"Port {port} of 127.0.0.1 is in use: choose"):
            start(port=port)
    with pytest.raises(ResourceError, match=r"203\.0\.113\.9 is no address of this machine"):
        start(host="203.0.113.9")
    with pytest.raises(ResourceError, match="has no address"):
        start(host="no-such-host.invalid")


@pytest.mark.parametrize("timeout_s", [0.0, float("inf")])
def test_impossible_timeouts(timeout_s: float) -> None:
    with pytest.raises(UsageError, match="liveness timeout must be at least"):
        terms_of(View.first(1), timeout_s)


def test_impossible_deadlines() -> None:
    with pytest.raises(UsageError, match="positive number of seconds"):
        ControlClient("tcp://127.0.0.1:1", KEY, 0, 0.0, lambda lost: None)

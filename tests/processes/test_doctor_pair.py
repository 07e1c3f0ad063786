"""`shoal doctor` as two processes over loopback: findings, key, strangers and deadlines."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zmq
from forked_process import ForkedProcess, run_command

import shoal
from shoal.control.key import JobKey
from shoal.control.rendezvous import job_key
from shoal.doctor import rate_search
from shoal.doctor.doctor_report import read_report
from shoal.doctor.ends import OtherEnd, describe_end
from shoal.doctor.pair_messages import Hello, decode_answer, encode
from shoal.doctor.probes import ProbeSockets
from shoal.doctor.rate_search import MOST_BYTES
from shoal.errors import MismatchError
from shoal.scenario.spec_file import read_scenario
from shoal.wire.settings import Settings
from thoroughness import seldom

DOCTOR = [sys.executable, "-m", "shoal.cli", "doctor"]
KEY = "the key of this test, no secret"
WAYS = {"TCP ports", "UDP ports", "path MTU", "DSCP", "ECN", "GSO", "rate", "equal ways"}


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    return {**kept, "SHOAL_JOB_KEY": KEY, **more}


@contextmanager
def listening(*options: str, **variables: str) -> Iterator[str]:
    """Run a listener; yields where it can be called."""
    words = ["doctor", "--listen", "--port", "0", "--seconds", "60", *options]
    process = ForkedProcess(environment(**variables), run_command, words)
    try:
        line = process.first_error_line()
        assert "shoal doctor --with " in line, line
        yield line.split()[-1]
        assert process.poll() is None, process.communicate()
    finally:
        process.terminate()
        process.communicate(timeout=10)


class Done(NamedTuple):
    """How a command has ended, and what it has written."""

    returncode: int
    stdout: str
    stderr: str


def in_haste(words: list[str]) -> None:
    """Be the command, with fewer packets for the figures: those are looked at elsewhere."""
    rate_search.BURST, rate_search._FIRST_RATE = 100, 10**9  # type: ignore[misc]
    run_command(words)


def in_some_haste(words: list[str]) -> None:
    """Be the command, which takes fewer streams to find a rate."""
    rate_search._FIRST_RATE = 10**9  # type: ignore[misc]
    run_command(words)


def doctor(*words: str, be: Callable[[list[str]], None] = run_command, **variables: str) -> Done:
    """Run the command to its end."""
    process = ForkedProcess(environment(**variables), be, ["doctor", *words])
    try:
        written = process.communicate(timeout=50)
    finally:
        process.kill()
    assert process.returncode is not None
    return Done(process.returncode, *written)


def call(place: str, *options: str, **variables: str) -> Done:
    return doctor("--with", place, *options, be=in_haste, **variables)


def findings_of(done: Done) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


@pytest.mark.parametrize("address", seldom(["127.0.0.1", "::1"], often=["::1"]))
def test_a_pair_over_loopback_is_in_order(address: str, tmp_path: Path) -> None:
    if address == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6 on loopback")
    file = tmp_path / "findings.json"
    with listening("--bind", address) as place:
        done = doctor("--with", place, "--json", str(file))
    assert done.returncode == 0, done.stderr
    findings = json.loads(file.read_text())["findings"]
    both_ways = [each["name"] for each in findings if each["where"] == f"{address} -> {address}"]
    assert sorted(both_ways) == sorted([*WAYS, *WAYS])
    assert all(each["verdict"] == "ok" or each["advice"] for each in findings)
    for name in ("DSCP", "ECN", "UDP ports", "TCP ports", "path MTU", "loss", "round trip"):
        assert f"{name} " in done.stdout
        assert {each["verdict"] for each in findings if each["name"] == name} == {"ok"}, findings


@pytest.mark.long
def test_a_range_of_ports_is_tried_with_its_ends() -> None:
    first, last = 21_000, 21_099  # below those that the kernel gives away
    with listening(SHOAL_PORTS=f"{first}-{last}") as place:
        done = call(place, "--json", "-")
    assert done.returncode == 0
    for name in ("UDP ports", "TCP ports"):
        found = next(each["found"] for each in findings_of(done) if each["name"] == name)
        assert found == f"ports {first} ... {last} reachable"


def test_figures_of_several_calls_become_a_cluster_and_a_report(tmp_path: Path) -> None:
    report, cluster = tmp_path / "report.json", tmp_path / "cluster.toml"
    with listening("--bind", "127.0.0.2") as place, listening("--bind", "127.0.0.3") as another:
        calls = ["--with", another, "--bind", "127.0.0.1", "--cluster", str(cluster)]
        done = doctor("--with", place, *calls, "--json", str(report), be=in_some_haste)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "leave open" in done.stderr
    pairs = read_report(report).pairs
    ends = [(pair.there.sender, pair.there.receiver) for pair in pairs]
    assert ends == [("127.0.0.1", "127.0.0.2"), ("127.0.0.1", "127.0.0.3")]
    for way in (way for pair in pairs for way in (pair.there, pair.back)):
        assert way.rate is not None
        assert 0 < way.rate.sent_bytes <= MOST_BYTES
        assert way.path_mtu == 65535
        assert (way.sent, way.lost) == (1000, 0)
    for pair in pairs:
        assert 0 < (pair.shortest_us or 0) <= (pair.median_us or 0) <= (pair.longest_us or 0)
    hosts = read_scenario(cluster).cluster.topology.host_names
    assert hosts == ("127-0-0-1", "127-0-0-2", "127-0-0-3")


@pytest.mark.long  # closed output is tried in core/cli/test_closed_output.py
def test_files_are_written_although_nobody_reads_the_table(tmp_path: Path) -> None:
    own, cluster = tmp_path / "own.json", tmp_path / "cluster.toml"
    reading, writing = os.pipe()
    os.close(reading)
    with listening("--bind", "127.0.0.2", "--json", str(own)) as place:
        options = ["--with", place, "--bind", "127.0.0.1", "--cluster", str(cluster)]
        done = subprocess.run(
            [*DOCTOR, *options], env=environment(), stdout=writing, timeout=60, check=False
        )
    os.close(writing)
    assert done.returncode == 128 + signal.SIGPIPE
    assert read_scenario(cluster).cluster.topology.hosts == 2
    assert read_report(own).findings  # of the listener's machine
    assert not read_report(own).pairs


@pytest.mark.long
def test_one_address_is_no_cluster_and_the_findings_are_there_all_the_same(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.toml"
    with listening() as place:
        done = call(place, "--cluster", str(cluster))
    assert done.returncode == 4, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: Both ends of a pair are 127.0.0.1")
    assert "round trip" in done.stdout
    assert not cluster.exists()


def test_nobody_listening_is_one_finding_and_exit_code_9() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = call(f"127.0.0.1:{taken.getsockname()[1]}", "--json", "-")
    assert done.returncode == 9
    (wrong,) = [each for each in findings_of(done) if each["verdict"] == "wrong"]
    assert wrong["name"] == "listener"
    assert "shoal doctor --listen" in wrong["advice"]


def test_another_key_is_refused_in_a_sentence() -> None:
    with listening() as place:
        done = call(place, SHOAL_JOB_KEY="another key than the listener's")
        assert done.returncode == 3, done.stderr
        assert done.stderr.startswith("error: ")
        assert "SHOAL_JOB_KEY" in done.stderr


@pytest.mark.parametrize("is_refused_first", seldom([True, False], often=[True]))
def test_what_was_measured_is_kept_though_another_listener_refuses(
    tmp_path: Path, *, is_refused_first: bool
) -> None:
    report = tmp_path / "report.json"
    stranger = listening("--bind", "127.0.0.3", SHOAL_JOB_KEY="another key than the caller's")
    with listening("--bind", "127.0.0.2") as place, stranger as another:
        calls = (another, place) if is_refused_first else (place, another)
        more = ["--with", calls[1], "--bind", "127.0.0.1", "--json", str(report)]
        done = call(calls[0], *more)
        assert done.returncode == 3
        assert "SHOAL_JOB_KEY" in done.stderr
        assert "path MTU" in done.stdout
        (pair,) = read_report(report).pairs
        assert pair.there.receiver == "127.0.0.2"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        pytest.param(["--with", "127.0.0.1:http"], "HOST:PORT", marks=pytest.mark.long),
        (["--with", "127.0.0.1:70000"], "HOST:PORT"),
        (["--with", "no-such-host.invalid"], "cannot be resolved"),
        pytest.param(["--with", "no..host"], "cannot be resolved", marks=pytest.mark.long),
        (["--with", "127.0.0.1:\N{SUPERSCRIPT TWO}"], "HOST:PORT"),
        pytest.param(["--with", "127.0.0.1", "--listen"], "choose one", marks=pytest.mark.long),
        (["--with", "no-such-host.invalid", "--listen"], "choose one"),
        (["--listen", "--seconds", "0"], "--seconds"),
        (["--with", "192.0.2.1:29499", "--bind", "127.0.0.1"], "SHOAL_JOB_KEY"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], complaint: str) -> None:
    done = doctor(*options, SHOAL_JOB_KEY="")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert complaint in done.stderr
    assert done.stdout == "", "refused before anything is looked at"


def test_a_machine_that_cannot_be_reached_examines_no_pair() -> None:
    done = doctor("--listen", "--json", "-", SHOAL_BIND="0.0.0.0")
    assert done.returncode == 9
    assert "no pair is examined" in done.stderr
    (wrong,) = [each for each in findings_of(done) if each["verdict"] == "wrong"]
    assert "SHOAL_ADVERTISE" in wrong["advice"]


@pytest.mark.long  # the test below has more than one address, too
def test_of_all_addresses_the_one_towards_the_listener_takes_part() -> None:
    with listening() as place:
        done = call(place, "--json", "-", SHOAL_BIND="0.0.0.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {each["name"] for each in findings_of(done)} >= WAYS


def test_every_address_is_looked_at_and_the_first_takes_part() -> None:
    with listening() as place:
        done = call(place, "--json", "-", SHOAL_BIND="127.0.0.2,127.0.0.1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "examined with 127.0.0.2" in done.stderr
    findings = findings_of(done)
    for name, count in (("address", 2), ("interface", 2), ("receive buffer", 2), ("cores", 1)):
        where = [each["where"] for each in findings if each["name"] == name]
        assert [place for place in where if place != "127.0.0.1"] == ["127.0.0.2"], name
        assert len(where) >= count
    assert "127.0.0.2 -> 127.0.0.1" in {each["where"] for each in findings}


def test_random_bytes_and_another_key_do_not_disturb_the_listener() -> None:
    source = random.Random(3)
    with listening() as place:
        host, _, port = place.rpartition(":")
        for round_ in range(20):
            with socket.create_connection((host, int(port)), timeout=10) as stranger:
                greeting = b"\xff" + bytes(8) + b"\x7f\x03" if round_ % 2 else b""  # as ZMTP begins
                try:
                    stranger.sendall(greeting + source.randbytes(source.choice((1, 64, 70_000))))
                except ConnectionError:
                    continue  # hung up on, rightly
        assert call(place, SHOAL_JOB_KEY="another key than the listener's").returncode == 3
        done = call(place, "--json", "-")
    assert done.returncode == 0, done.stdout + done.stderr


def test_nonsense_of_somebody_with_the_key_is_refused_and_the_next_caller_served() -> None:
    key = JobKey(KEY)
    source = random.Random(5)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with listening() as place:
        dealer = context.socket(zmq.DEALER)
        pair = key.client_pair()
        dealer.curve_serverkey = key.server_pair().public
        dealer.curve_publickey, dealer.curve_secretkey = pair.public, pair.secret
        dealer.connect(f"tcp://{place}")
        with ProbeSockets(Settings()) as sockets:
            own = encode(Hello(shoal.__version__, describe_end(Settings(), sockets)))
        nonsense = [b"", b"\xc1", encode(["Send", [], 0.0]), encode(["Hello", 3, {}])]
        nonsense += [encode(["Collect", 1 << 40, 1e300]), encode(["Dial", [0]])]
        nonsense += [source.randbytes(length) for length in range(1, 60)]
        nonsense += [own]  # from here on the caller is known, and still may not ask for anything
        too_much = [
            [1 << 40, 1, 1],
            [1, 0, 1],
            [1, 1, 1 << 40],
            [1, 1, 1, 999],
            [1, 1, 1, 0, 1 << 30],
        ]
        nonsense += [encode(["Send", [probe], 0.0]) for probe in too_much]
        nonsense += [encode(["Send", [[1, 1, 1]], 1e9]), encode(["Send", [[1, 1, 1]] * 5000, 0.0])]
        nonsense += [
            encode(["SendStream", stream])
            for stream in (
                [1, 1, 1500, 20_000, 1_000_000],
                [1, 1, 1, 1, 1_000_000],
                [1, 1, 99, 9, 0],
            )
        ]
        nonsense += [encode(["Count", 1, 1, 1e9, 1.0]), encode(["Count", 1, 1, 1.0, 1e9])]
        nonsense += [encode(["Collect", 1, 1e9]), encode(["Dial", list(range(1, 1000))])]
        for payload in nonsense:
            dealer.send_multipart([payload, b""] if len(payload) % 2 else [payload])  # frames too
            assert dealer.poll(10_000)
            answer = type(decode_answer(dealer.recv())).__name__
            assert answer == ("Welcome" if payload == own else "Refused"), payload
        dealer.send(encode(["Bye"]))
        dealer.close(0)
        assert call(place, "--json", "-").returncode == 0
    context.destroy(0)


def test_one_caller_at_a_time_and_none_of_another_network() -> None:
    key = JobKey(KEY)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with listening() as place, ProbeSockets(Settings()) as sockets:
        host, _, port = place.rpartition(":")
        own = describe_end(Settings(), sockets)
        first = OtherEnd(context, host, int(port), key, sockets)
        second = OtherEnd(context, host, int(port), key, sockets)
        try:
            elsewhere = describe_end(Settings(advertise="192.0.2.1"), sockets)
            with pytest.raises(MismatchError, match="this machine only"):
                first.greet(elsewhere)
            first.greet(own)
            with pytest.raises(MismatchError, match="busy"):
                second.greet(own)
            first.close()
            welcome = None
            while welcome is None:  # the two have a connection each: the farewell may come later
                with contextlib.suppress(MismatchError):
                    welcome = second.greet(own)
            assert welcome.end.address == "127.0.0.1"
        finally:
            second.close()
    context.destroy(0)


def test_without_a_key_only_this_machine_is_listened_to() -> None:
    assert job_key({}, "127.0.0.1") == job_key({}, "::1" if has_ipv6() else "localhost")
    with listening(SHOAL_JOB_KEY="") as place:
        assert place.startswith("127.0.0.1:")
        assert call(place, SHOAL_JOB_KEY="").returncode == 0

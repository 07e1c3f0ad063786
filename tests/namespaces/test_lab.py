"""Labs: commands on their hosts, what happens to hosts and links, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lab_commands import DEADLINE_S, SHOAL_LAB, STAR, shoal_lab

from process_table import marked_environment, processes_of, wait_for_end
from shoal.errors import ResourceError, UsageError
from shoal.lab.lab import Lab
from shoal.lab.network.host_interfaces import address_of
from shoal.lab.network.namespaces import socket_inside
from shoal.scenario.cluster_spec import LinkEvent
from shoal.scenario.spec_file import parse_spec
from shoal.switching.tables import Count
from shoal.switching.topology import names_of

DETACHED = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(300)\nos.wait()\n"
"""A program that ends only when a process does that has left its session."""


def lab_of(hosts: int = 2, more: str = "") -> Lab:
    return Lab(parse_spec(STAR.format(hosts=hosts) + more))


def output_of(lab: Lab, host: int, *command: str) -> tuple[int | None, str]:
    with lab.start(host, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        written = process.stdout.read().decode()
        return process.wait(DEADLINE_S), written


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.01)


def test_commands_are_at_home_on_their_host() -> None:
    with lab_of(3) as lab:
        code, written = output_of(lab, 1, "sh", "-c", "hostname; echo $SHOAL_LAB_ADDRESS; exit 3")
        assert (code, written) == (3, f"host1\n{address_of(1)}\n")
        names = "import socket; print(*map(socket.gethostbyname, ['host0', 'host2', 'localhost']))"
        code, written = output_of(lab, 0, sys.executable, "-c", names)
        assert (code, written) == (0, f"{address_of(0)} {address_of(2)} 127.0.0.1\n")
        assert output_of(lab, 0, "no-such-command")[0] == 127


def test_what_cannot_be_started_is_a_sentence(tmp_path: Path) -> None:
    lab = lab_of(2)
    with lab:
        for host in (2, -1):
            with pytest.raises(UsageError, match=f"no host {host}: this lab has hosts 0 to 1"):
                lab.start(host, ["true"])
        with pytest.raises(UsageError, match="A command is missing"):
            lab.start(0, [])
        with pytest.raises(ResourceError, match=f"on host1: No such file .*: {tmp_path}/none"):
            lab.start(1, ["true"], directory=f"{tmp_path}/none")
    with pytest.raises(UsageError, match="has been closed"):
        lab.start(0, ["true"])


def test_hosts_reach_each_other_only_through_the_switch() -> None:
    with lab_of(2) as lab:
        serve = (
            "import socket; s = socket.create_server(('', 5000)); print('ready', flush=True);"
            "c, (peer, _) = s.accept(); print(peer, c.recv(5))"
        )
        server = lab.start(1, [sys.executable, "-c", serve], stdout=subprocess.PIPE)
        assert server.stdout.readline() == b"ready\n"
        call = "import socket; socket.create_connection(('host1', 5000)).send(b'hello')"
        assert output_of(lab, 0, sys.executable, "-c", call) == (0, "")
        assert server.stdout.readline().decode() == f"{address_of(0)} b'hello'\n"
        assert lab.counts()[..., Count.SENT].sum() >= 8, "both ports, either direction"


def test_workers_find_what_a_launcher_puts_into_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SHOAL_JOB_KEY", raising=False)
    wanted = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    code = f"import os; print(*[os.environ[name] for name in ('SHOAL_JOB_KEY', *{wanted})])"

    def said(lab: Lab) -> list[list[str]]:
        found = []
        for worker in lab.start_workers([sys.executable, "-c", code], stdout=subprocess.PIPE):
            with worker.stdout as output:
                found.append(output.read().decode().split())
        return found

    with Lab(parse_spec(STAR.format(hosts=2).replace("2\n", "2\nhosts.workers = 2\n", 1))) as lab:
        first, second = said(lab), said(lab)
        monkeypatch.setenv("SHOAL_JOB_KEY", "one of our own")
        assert {" ".join(each[:-6]) for each in said(lab)} == {"one of our own"}
    assert len({each[0] for each in first}) == len({each[0] for each in second}) == 1
    assert first[0][0] != second[0][0], "each job has a key of its own"
    assert [each[1:] for each in first] == [
        [str(rank), str(rank % 2), "4", "2", address_of(0), "29500"] for rank in range(4)
    ]


def test_closing_a_lab_ends_whatever_its_commands_have_started() -> None:
    environment = marked_environment()
    with lab_of() as lab:
        command = [sys.executable, "-c", DETACHED]
        process = lab.start(0, command, environment=environment)
        wait_until(lambda: sum("setsid" in text for text in processes_of(environment).values()) > 3)
        assert process.poll() is None
    assert processes_of(environment) == {}


def test_a_command_that_ends_takes_what_it_started_along() -> None:
    environment = marked_environment()
    with lab_of() as lab:
        process = lab.start(0, ["sh", "-c", "sleep 300 & exit 5"], environment=environment)
        assert process.wait(DEADLINE_S) == 5
        assert wait_for_end(environment, DEADLINE_S) == {}


def test_signals_reach_a_command_and_its_children() -> None:
    with lab_of() as lab:
        script = "trap 'echo asked; exit 7' TERM; echo ready; sleep 300 & wait"
        process = lab.start(0, ["sh", "-c", script], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        process.signal(signal.SIGTERM)
        assert process.stdout.read() == b"asked\n"
        assert process.wait(DEADLINE_S) == 7


def test_nothing_stays_behind_when_the_process_of_a_lab_is_killed() -> None:
    environment = marked_environment()
    code = (
        "import sys\n"
        "from shoal.lab.lab import Lab\nfrom shoal.scenario.spec_file import parse_spec\n"
        f"with Lab(parse_spec({STAR.format(hosts=2)!r})) as lab:\n"
        f"    lab.start(0, [sys.executable, '-c', {DETACHED!r}])\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        wait_until(lambda: sum("setsid" in text for text in processes_of(environment).values()) > 3)
        process.kill()
    assert wait_for_end(environment, DEADLINE_S) == {}


def test_a_command_meets_signals_as_if_a_shell_had_started_it() -> None:
    with lab_of() as lab:
        assert output_of(lab, 0, "sh", "-c", "yes | head -n 1") == (0, "y\n")


def test_a_slow_host_runs_a_part_of_the_time_and_recovers() -> None:
    code = (
        "import time\n"
        "print('ready', flush=True)\n"
        "input()\n"
        "wall, own = time.monotonic(), time.process_time()\n"
        "while time.monotonic() < wall + 1: pass\n"
        "print((time.process_time() - own) / (time.monotonic() - wall), flush=True)\n"
        "input()\n"
    )
    with lab_of() as lab:
        lab.slow_down(0, 10)
        process = lab.start(
            0,
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout.readline() == b"ready\n"
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert float(process.stdout.readline()) < 0.2
        lab.slow_down(0, 1)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(DEADLINE_S) == 0


LEAF_SPINE = """\
hosts.count = 2
topology = { shape = "leaf-spine", leaves = 2, spines = 2 }
access = { rate = "1 Gbit/s" }
switch = { forwarding = "packet", reroute = "0 s" }
"""


def send(lab: Lab, packets: int) -> None:
    with socket_inside(lab.hosts[0].path) as sender:
        for _ in range(packets):
            sender.sendto(b"x" * 100, (address_of(1), 9))


def sent(lab: Lab, cable: str) -> int:
    number = names_of(lab.spec.topology).index(cable)
    return int(lab.counts()[number, ..., Count.SENT].sum())


def lost(lab: Lab, cable: str) -> int:
    number = names_of(lab.spec.topology).index(cable)
    return int(lab.counts()[number, ..., Count.LOST].sum())


def test_events_happen_in_their_order_and_links_recover() -> None:
    events = """
[[event]]
at = "0 s"
from = "leaf0"
to = "spine0"
loss = 1.0
[[event]]
at = "0 s"
from = "leaf0"
to = "spine1"
down = true
"""
    with Lab(parse_spec(LEAF_SPINE + events)) as lab:
        send(lab, 100)
        wait_until(lambda: sent(lab, "leaf1-host1") == 100)
        lab.begin()
        number = names_of(lab.spec.topology).index("leaf0-spine1")
        wait_until(lambda: bool(lab.fabric.change(lambda state: state.links[number]["down"])))
        wait_until(lambda: lab.fabric.change(lambda state: int(state.routes[0, 1, 1])) == 1)
        before = sent(lab, "leaf0-spine1")
        send(lab, 100)
        wait_until(lambda: lost(lab, "leaf0-spine0") == 100)
        assert sent(lab, "leaf0-spine1") == before, "switches avoid the link that is down"
        lab.change(LinkEvent(0, (number,), recover=True))
        lab.reroute()
        send(lab, 400)
        wait_until(lambda: lost(lab, "leaf0-spine0") + sent(lab, "leaf1-host1") == 600)
        assert sent(lab, "leaf0-spine1") > before + 100


def pace_of(lab: Lab, host: int) -> str:
    """Return what the kernel says of the bucket in front of a host's interface."""
    kind = "class" if lab.fabric.has_offloads else "qdisc"
    return output_of(lab, host, "tc", kind, "show", "dev", "eth0")[1]


def test_a_rate_that_changes_holds_for_the_host_that_sends() -> None:
    with Lab(parse_spec(STAR.format(hosts=2))) as lab:
        if not lab.fabric.paces_hosts:
            pytest.skip("Needs a token bucket of the kernel's (htb or tbf).")
        number = names_of(lab.spec.topology).index("host0-switch")
        lab.change(LinkEvent(0, (number,), rate=10_000_000))
        assert "rate 10Mbit" in pace_of(lab, 0)


def test_one_host_that_is_faster_than_any_bucket_does_not_take_the_others_theirs() -> None:
    with Lab(parse_spec(STAR.format(hosts=2))) as lab:
        if not lab.fabric.paces_hosts:
            pytest.skip("Needs a token bucket of the kernel's (htb or tbf).")
        number = names_of(lab.spec.topology).index("host0-switch")
        for rate in (400_000_000_000, 10_000_000):
            lab.change(LinkEvent(0, (number,), rate=rate))
        assert "rate 10Mbit" in pace_of(lab, 0)
    with Lab(parse_spec(STAR.format(hosts=2).replace("1 Gbit/s", "100 Gbit/s"))) as lab:
        assert lab.fabric.paces_hosts


def test_flows_come_and_go() -> None:
    flows = """
[[flow]]
from = "host0"
to = "host1"
rate = "40 Mbit/s"
for = "100 ms"
[[flow]]
from = "host1"
to = "host2"
protocol = "tcp"
[[flow]]
from = "host2"
to = "host0"
rate = "10 kbit/s"
packet = "100 B"
"""
    with lab_of(3, flows) as lab:
        lab.begin()
        wait_until(lambda: sent(lab, "switch-host2") > 1_000)
        wait_until(lambda: sent(lab, "switch-host1") > 200)
        udp, tcp, slow = (flow for _, flow in sorted(lab.flows.items()))
        wait_until(lambda: slow.sent_bytes > 100)
        assert tcp.sent_bytes > 1_000_000
        wait_until(lambda: udp.is_closed)
        assert udp.sent_bytes <= 40e6 / 8
    assert lab.trouble == ""


def test_a_flow_of_tcp_comes_to_its_host_over_a_long_way_whose_first_packets_are_lost() -> None:
    flow = """
[[link]]
between = ["host1", "switch"]
delay = "150 ms"
down = true
[[flow]]
from = "host0"
to = "host1"
protocol = "tcp"
rate = "1 Mbit/s"
[[event]]
at = "300 ms"
between = ["host1", "switch"]
down = false
"""
    with lab_of(2, flow) as lab:
        lab.begin()
        wait_until(lambda: 0 in lab.flows and lab.flows[0].sent_bytes > 0)


def test_programs_wait_for_their_link_instead_of_losing_packets() -> None:
    slow = 'hosts.count = 2\naccess = { rate = "20 Mbit/s" }\nswitch.port_buffer = "64 kB"\n'
    with Lab(parse_spec(slow)) as lab:
        if not lab.fabric.paces_hosts:
            pytest.skip("Needs a token bucket of the kernel's (htb or tbf).")
        with socket_inside(lab.hosts[0].path) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
            for _ in range(1_000):
                sender.sendto(b"x" * 1_400, (address_of(1), 9))
        wait_until(lambda: sent(lab, "switch-host1") == 1_000)
        assert lab.counts()[..., Count.DROPPED_FULL].sum() == 0


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / f"test-{os.getpid()}.toml"
    path.write_text(STAR.format(hosts=2))
    return str(path)


def test_run_ends_all_workers_when_one_fails(spec: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = (
        f'[ "$RANK" = 0 ] && {{ echo here; touch {said}; sleep 300; }};'
        f" until [ -e {said} ]; do sleep 0.01; done; echo trouble >&2; exit 9"
    )
    done = shoal_lab("run", spec, "--stats", str(tmp_path / "stats.json"), "--", "sh", "-c", script)
    assert done.returncode == 9
    assert (done.stdout, done.stderr) == ("[host0] here\n", "[host1] trouble\n")
    assert '"cable": "host0-switch"' in (tmp_path / "stats.json").read_text()


@pytest.mark.long  # test_lab_output.py interrupts one
def test_ctrl_c_ends_a_run_in_order(spec: str) -> None:
    environment = marked_environment()
    script = "trap 'echo saved; exit 0' INT; echo ready; sleep 300 & wait"
    with subprocess.Popen(
        [*SHOAL_LAB, "run", spec, "--", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdout is not None
        ready = {process.stdout.readline() for _ in range(2)}
        assert ready == {"[host0] ready\n", "[host1] ready\n"}
        process.send_signal(signal.SIGINT)
        written, errors = process.communicate(timeout=DEADLINE_S)
    assert set(written.splitlines()) == {"[host0] saved", "[host1] saved"}
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert wait_for_end(environment, DEADLINE_S) == {}


@pytest.mark.long
def test_a_module_in_the_current_folder_is_not_the_lab_s(spec: str, tmp_path: Path) -> None:
    (tmp_path / "platform.py").write_text("raise SystemExit('the wrong module')\n")

    def lab(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "shoal.cli", "lab", *arguments]  # as the script
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    started = lab("up", str(Path(spec).absolute()))
    try:
        assert started.returncode == 0, started.stderr
    finally:
        lab("down", Path(spec).stem)


def test_a_lab_stays_up_until_it_is_taken_down(spec: str) -> None:
    name = Path(spec).stem
    started = shoal_lab("up", spec)
    try:
        assert (started.returncode, started.stdout) == (
            0,
            f"{name}: 2 hosts are up: host0, host1\n",
        )
        again = shoal_lab("up", spec)
        assert (again.returncode, again.stdout) == (2, "")
        assert f"A lab '{name}' is up already" in again.stderr
        done = shoal_lab("exec", "--lab", name, "host1", "--", "sh", "-c", "hostname; exit 6")
        assert (done.returncode, done.stdout, done.stderr) == (6, "host1\n", "")
        raw = subprocess.run(
            [*SHOAL_LAB, "exec", "--lab", name, "host0", "--", "printenv", b"NOT_UTF\xff"],
            env={**os.environb, b"NOT_UTF\xff": b"\xfe"},
            capture_output=True,
            check=False,
        )
        assert (raw.returncode, raw.stdout, raw.stderr) == (0, b"\xfe\n", b"")
        nobody = shoal_lab("exec", "--lab", name, "host5", "--", "true")
        assert nobody.returncode == 2
        assert "There is no host 'host5'; there are host0, host1." in nobody.stderr
        stats = shoal_lab("stats", "--lab", name)
        assert [line.split()[0] for line in stats.stdout.splitlines()] == [
            "cable",
            *names_of(parse_spec(STAR.format(hosts=2)).topology),
        ]
    finally:
        ended = shoal_lab("down", name)
    assert (ended.returncode, ended.stderr) == (0, f"{name} is gone\n")
    assert shoal_lab("down", name).returncode == 2


def test_a_command_ends_with_whoever_waits_for_it(spec: str) -> None:
    name, environment = Path(spec).stem, marked_environment()
    assert shoal_lab("up", spec).returncode == 0
    try:
        with subprocess.Popen(
            [*SHOAL_LAB, "exec", "--lab", name, "host0", "--", "sh", "-c", "echo ready; sleep 300"],
            stdout=subprocess.PIPE,
            env=environment,
        ) as visitor:
            assert visitor.stdout is not None
            assert visitor.stdout.readline() == b"ready\n"
            visitor.kill()
        assert wait_for_end(environment, DEADLINE_S) == {}
    finally:
        assert shoal_lab("down", name).returncode == 0


def user_namespace() -> tuple[str, ...]:
    """Return what runs a command as an ordinary user, if that can have namespaces here."""
    as_user = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
    tried = subprocess.run([*as_user, "unshare", "--user", "true"], check=False)
    if tried.returncode != 0:
        pytest.skip("Needs unshare and user namespaces within user namespaces.")
    return as_user


def test_an_ordinary_user_has_labs_in_a_user_namespace(spec: str) -> None:
    as_user = user_namespace()
    done = shoal_lab("run", spec, "--", "hostname", prefix=as_user)
    assert (done.returncode, set(done.stdout.splitlines())) == (
        0,
        {"[host0] host0", "[host1] host1"},
    )


@pytest.mark.long
def test_an_ordinary_user_s_lab_stays_up(spec: str) -> None:
    as_user = user_namespace()
    script = (
        f"{sys.executable} -m shoal.cli lab up {spec}"
        f" && {sys.executable} -m shoal.cli lab exec host1 hostname"
        f"; {sys.executable} -m shoal.cli lab down"
    )
    stayed = subprocess.run(
        [*as_user, "sh", "-c", script], capture_output=True, text=True, timeout=180, check=False
    )
    assert stayed.stdout.splitlines()[1:] == ["host1"], stayed.stderr
    assert stayed.stderr.endswith("is gone\n")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["run", "none.toml", "--", "true"], 4, "Cannot read none.toml"),
        (["run", "{spec}", "--", "no-such-command"], 2, "There is no command 'no-such-command'."),
        (["exec", "--lab", "none", "host0", "--", "true"], 2, "No lab"),
        (["switch-config", "{spec}", "--for", "ios"], 2, "There is no format 'ios'; there are"),
        (["switch-config", "{spec}", "--for", "eos", "--switch", "x"], 2, "no switch 'x'; say"),
        (["up", "{spec}", "--name", "a b"], 2, "A name has letters, digits and hyphens"),
    ],
)
def test_mistakes_are_a_sentence_and_a_code(
    spec: str, arguments: list[str], code: int, sentence: str
) -> None:
    done = shoal_lab(*[each.format(spec=spec) for each in arguments])
    assert done.returncode == code
    assert done.stderr.startswith("error: ")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr

"""A job in a lab is shown to this machine's browsers, whichever host shows it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from lab_commands import DEADLINE_S, SHOAL_LAB, STAR, shoal_lab
from test_lab import user_namespace

from shoal.lab.lab import Lab
from shoal.lab.port_forward import PortForward, listen
from shoal.scenario.spec_file import parse_spec
from thoroughness import seldom

ECHO = """
import os, socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    print("listens", flush=True)
    for _ in range(2):
        with listener.accept()[0] as visitor:
            while words := visitor.recv(1 << 16):
                visitor.sendall(os.environ["SHOAL_LAB_HOST"].encode() + b" heard " + words)
"""


def said(port: int, words: bytes) -> bytes:
    """Return what is answered to `words` until the other side ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(1 << 16):
            answer += chunk
        return answer


def test_a_port_leads_to_the_host_that_listens() -> None:
    with Lab(parse_spec(STAR.format(hosts=3))) as lab:
        listener = listen("127.0.0.1", 0)
        port = listener.getsockname()[1]
        with PortForward(listener, [host.path for host in lab.hosts]):
            with pytest.raises(HTTPError, match="503") as nobody:
                urlopen(f"http://127.0.0.1:{port}/", timeout=DEADLINE_S)
            assert nobody.value.read().startswith(b"No worker of the lab shows its job here yet")
            for host in (2, 0):  # and moves
                command = [sys.executable, "-c", ECHO, str(port)]
                with lab.start(host, command, stdout=subprocess.PIPE) as process:
                    assert process.stdout.readline() == b"listens\n"
                    for words in (b"you", b"again"):
                        assert said(port, words) == b"host%d heard " % host + words
                    assert process.wait(DEADLINE_S) == 0
        with pytest.raises(ConnectionRefusedError):
            said(port, b"too late")


RUN = f"""
import os, sys
sys.argv[1:] = [os.environ["SHOAL_WATCH"]]
if os.environ["RANK"] == "1":
    exec({ECHO!r})
"""


@pytest.mark.parametrize(
    "is_root", seldom([True, False], often=[True]), ids=["root", "an ordinary user"]
)
def test_what_workers_show_is_reached_from_where_the_command_was_started(
    tmp_path: Path, is_root: bool
) -> None:
    spec = tmp_path / "lab.toml"
    spec.write_text(STAR.format(hosts=2))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    prefix = () if is_root else user_namespace()
    words = ["run", "--watch", str(port), str(spec), "--", sys.executable, "-c", RUN]
    with subprocess.Popen(
        [*prefix, *SHOAL_LAB, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == b"[host1] listens\n", process.stderr.read()
            for words in (b"you", b"again"):
                assert said(port, words) == b"host1 heard " + words
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def test_a_port_that_is_taken_is_a_sentence(tmp_path: Path) -> None:
    spec = tmp_path / "lab.toml"
    spec.write_text(STAR.format(hosts=2))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = shoal_lab("run", "--watch", str(port), str(spec), "--", "true")
    assert (done.returncode, done.stderr) == (
        7,
        f"error: Nothing can be shown at 127.0.0.1:{port}: Address already in use.\n",
    )

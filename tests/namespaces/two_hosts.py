"""Two hosts with a meddling network between them, in namespaces of its own; run by `unshare --net`.

Usage: two_hosts.py RULES. Joins two further network namespaces through this one, forwards frames
between them as RULES (JSON) say, runs `shoal doctor --listen` in one and `--with` in the other, and
prints a JSON object: "code", "findings", "complaint". All namespaces end with the processes in
them, and those with this one: they read from its pipes.

Rules, each for one way, "there" (caller to listener) or "back":
  drop_udp: true           no UDP passes
  largest: bytes           larger IP packets vanish
  clear_dscp: true         DSCP becomes 0
  drop_dscp: [value, ...]  IP packets with these vanish
  set_ecn: {"0": 3, ...}   ECN codepoints that change
  lose_every: n            of UDP packets of 1,000 bytes and more, every n-th vanishes
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

VNET_HEADER_BYTES = 10
ETHERNET_BYTES = 14
SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING = 263, 15, 4
EVERYTHING = 3
IPV4 = 0x0800
PORT = 29000
LISTENER, CALLER = "10.77.0.1", "10.77.0.2"


class Way:
    """What happens to frames one way."""

    def __init__(self, rules: dict[str, Any]) -> None:
        self.rules = rules
        self.udp_seen = 0

    def treat(self, frame: bytearray) -> bool:
        """Change `frame` (with its vnet header) by the rules; return whether it goes on."""
        ip = VNET_HEADER_BYTES + ETHERNET_BYTES
        if struct.unpack_from("!H", frame, ip - 2)[0] != IPV4:
            return True
        tos, size, is_udp = frame[ip + 1], len(frame) - ip, frame[ip + 9] == socket.IPPROTO_UDP
        if size > self.rules.get("largest", size) or tos >> 2 in self.rules.get("drop_dscp", ()):
            return False
        if is_udp:
            if self.rules.get("drop_udp"):
                return False
            self.udp_seen += size >= 1000
            every = self.rules.get("lose_every")
            if every and size >= 1000 and self.udp_seen % every == 0:
                return False
        dscp = 0 if self.rules.get("clear_dscp") else tos >> 2
        ecn = self.rules.get("set_ecn", {}).get(str(tos & 3), tos & 3)
        frame[ip + 1] = dscp << 2 | ecn
        frame[ip + 10 : ip + 12] = bytes(2)
        frame[ip + 10 : ip + 12] = struct.pack("!H", checksum(frame[ip : ip + 20]))
        return True


def checksum(header: bytes) -> int:
    """Return the Internet checksum."""
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def port_of(name: str) -> socket.socket:
    """Return a socket that sees and sends all frames of an interface, offloaded work included."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    port.bind((name, EVERYTHING))
    return port


def forward(ports: list[socket.socket], ways: list[Way]) -> None:
    """Carry frames between the two ports for ever; `ways[i]` treats what comes in at `ports[i]`."""
    while True:
        for port in select.select(ports, [], [])[0]:
            index = ports.index(port)
            data, (_, _, kind, *_) = port.recvfrom(70_000)
            frame = bytearray(data)
            if kind != PACKET_OUTGOING and ways[index].treat(frame):
                with contextlib.suppress(OSError):
                    ports[1 - index].send(frame)


def make_host(address: str, name: str) -> list[str]:
    """Make a namespace joined to this one by interface `name`; return a prefix that enters it."""
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
    ours, theirs = str(Path("/proc/self/ns/net").readlink()), Path(f"/proc/{holder.pid}/ns/net")
    deadline = time.monotonic() + 5
    while str(theirs.readlink()) == ours:
        if time.monotonic() > deadline:
            raise SystemExit("no namespace")
        time.sleep(0.01)
    inside = ["nsenter", "--target", str(holder.pid), "--net"]
    peer = ["peer", "name", "wire", "netns", str(holder.pid)]
    call("ip", "link", "add", name, "type", "veth", *peer)
    call("ip", "link", "set", name, "up")
    call(*inside, "ip", "link", "set", "lo", "up")
    call(*inside, "ip", "link", "set", "wire", "gso_max_segs", "1")  # frames no longer than the MTU
    call(*inside, "ip", "address", "add", f"{address}/24", "dev", "wire")
    call(*inside, "ip", "link", "set", "wire", "up")
    while b"state UP" not in call(*inside, "ip", "link", "show", "wire"):
        if time.monotonic() > deadline:
            raise SystemExit("the link does not come up")
        time.sleep(0.01)
    return inside


def call(*command: str) -> bytes:
    return subprocess.run(command, check=True, timeout=10, stdout=subprocess.PIPE).stdout


def main(rules: dict[str, dict[str, Any]]) -> dict[str, Any]:
    hosts = [make_host(LISTENER, "port0"), make_host(CALLER, "port1")]
    ways = [Way(rules.get("back", {})), Way(rules.get("there", {}))]
    ports = [port_of("port0"), port_of("port1")]
    threading.Thread(target=forward, args=(ports, ways), daemon=True).start()
    doctor = [sys.executable, "-m", "shoal.cli", "doctor"]
    environment = {**os.environ, "SHOAL_JOB_KEY": "a key for this test only"}
    listening = [*hosts[0], *doctor, "--listen", "--bind", LISTENER, "--port", str(PORT)]
    with subprocess.Popen(
        listening, env=environment, stderr=subprocess.PIPE, text=True
    ) as listener:
        try:
            assert listener.stderr is not None
            listener.stderr.readline()  # it listens now, or has failed and the caller will say so
            calling = [*hosts[1], *doctor, "--with", f"{LISTENER}:{PORT}", "--json", "-"]
            done = subprocess.run(
                calling, env=environment, capture_output=True, text=True, timeout=45, check=False
            )
        finally:
            listener.terminate()
    findings = json.loads(done.stdout) if done.stdout else []
    return {"code": done.returncode, "findings": findings, "complaint": done.stderr}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))

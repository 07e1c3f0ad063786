"""Network namespaces without names: made by a thread, held by a descriptor, gone when it is closed.

Owns the system calls. Nothing is left behind however the process ends: with the last descriptor
and the last process inside, the kernel removes a namespace and the links that it holds. Knows
nothing of what the namespaces are for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from shoal.errors import ResourceError
from shoal.lab.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Result = TypeVar("Result")

_CLONE_NEWNET = 0x40000000
_MINE = "/proc/thread-self/ns/net"
_COMMAND_SECONDS = 60.0
_libc = ctypes.CDLL(None, use_errno=True)


class Namespace(Closing):
    """A new network namespace. A context manager: leaving it lets go of it.

    Raises `ResourceError` without the right to make one.
    """

    def __init__(self) -> None:
        self._fd = _in_thread(_make)

    @property
    def path(self) -> str:
        """A path by which other processes of this user can enter it while this one holds it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @property
    def fileno(self) -> int:
        """The descriptor that holds it; -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        """Let go of it: it is removed once no process is inside. Safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def run(self, command: Sequence[str], text: str = "", *, keep: Sequence[int] = ()) -> str:
        """Run `command` inside with `text` as its input; return what it prints.

        The descriptors `keep` stay open in it. Raises `ResourceError` with its last words if it
        fails or is not installed.
        """
        return _in_thread(lambda: self._run(command, text, keep))

    def batch(self, tool: str, lines: Iterable[str], *, keep: Sequence[int] = ()) -> None:
        """Have `ip` or `tc` do what the lines say inside, up to the first that fails; as `run`."""
        self.run([tool, "-batch", "-"], "\n".join(lines) + "\n", keep=keep)

    def _run(self, command: Sequence[str], text: str, keep: Sequence[int]) -> str:
        _enter(self._fd)
        try:
            done = subprocess.run(
                command,
                input=text,
                text=True,
                capture_output=True,
                pass_fds=tuple(keep),
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            message = f"The command {command[0]!r} is not installed."
            raise ResourceError(message) from None
        except subprocess.TimeoutExpired:
            message = f"{' '.join(command)} did not end within {_COMMAND_SECONDS:g} s."
            raise ResourceError(message) from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            message = f"{' '.join(command)} failed: {lines[0]}"
            raise ResourceError(message)
        return done.stdout


def socket_inside(path: str, kind: int = socket.SOCK_DGRAM) -> socket.socket:
    """Return a socket of IPv4, by default of UDP, that is in the namespace at `path`.

    Raises `ResourceError`.
    """
    with inside(path):
        return socket.socket(socket.AF_INET, kind)


@contextlib.contextmanager
def inside(path: str) -> Iterator[None]:
    """Have the calling thread, and all that it starts meanwhile, in the namespace at `path`.

    Sockets stay in the namespace that they were opened in. Raises `ResourceError`.
    """
    home = os.open(_MINE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(home)
    finally:
        os.close(home)


def obstacle(commands: Sequence[str]) -> str | None:
    """Return a sentence on why namespaces with `commands` in them cannot be had, None if they can.

    `commands` are programs to be found on the path.
    """
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        return f"Needs the command{'s' * (len(missing) > 1)} {' and '.join(missing)}."
    try:
        _in_thread(_try_out)
    except ResourceError as error:
        if os.geteuid() == 0:
            return f"{error} Needs CAP_SYS_ADMIN, and user.max_net_namespaces above what is in use."
        return f"{error} Needs root, or a shell made by `unshare --user --net --map-root-user`."
    return None


def _try_out() -> None:
    """Enter a new namespace and come back: one needs rights over the old one for that, too."""
    with Namespace() as namespace, inside(namespace.path):
        pass


def _make() -> int:
    if _libc.unshare(_CLONE_NEWNET) != 0:
        message = f"Cannot make a network namespace: {os.strerror(ctypes.get_errno())}."
        raise ResourceError(message)
    return os.open(_MINE, os.O_RDONLY | os.O_CLOEXEC)


def _enter(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        message = f"Cannot enter a network namespace: {os.strerror(ctypes.get_errno())}."
        raise ResourceError(message)


def _in_thread(work: Callable[[], Result]) -> Result:
    """Return what `work` returns in a thread of its own: a thread's namespace ends with it."""
    with ThreadPoolExecutor(1, thread_name_prefix="shoal-namespace") as thread:
        return thread.submit(work).result()

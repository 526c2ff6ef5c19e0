"""A connection between two processes of one machine: small messages, awaited no longer than a deadline.

The sockets have names in the kernel alone, which vanish with the process, however it ends. Every user of the machine
can read them (/proc/net/unix): what keeps others out is that the kernel tells whose process is at the other end, and
one of another user is not listened to.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from grpo.refit.deadline import Deadline
from grpo.refit.errors import PeerLostError, RefitError

_WORD = struct.Struct("<q")
_CREDENTIALS = struct.Struct("3i")  # process, user, group


@dataclass(frozen=True)
class Machine:
    """What two processes share that can connect: a kernel since its start, and its name spaces."""

    boot: str
    network: str

    @classmethod
    def here(cls) -> Machine:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(boot, " ".join(str(Path("/proc/self/ns", each).readlink()) for each in ("net", "ipc")))

    def __str__(self) -> str:
        return f"the machine started as {self.boot[:8]}, name spaces {self.network}"


class Listener:
    """Waits to be connected to, under `name`."""

    def __init__(self, deadline: Deadline) -> None:
        self.name = f"grpo-refit-{secrets.token_hex(16)}"  # of its own: other runs are on this machine
        self._deadline = deadline
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(64)

    def accept(self, count: int) -> list[Channel]:
        """Connections to so many peers, by their numbers. Another user's processes are turned away.

        Raises:
            PeerLostError: they did not come in time.
            RefitError: a number that is not one of 0 to `count` - 1, or twice the same.
        """
        made: list[Channel] = []
        try:
            while len(made) < count:
                awaited = sorted(set(range(count)) - {each.number for each in made})
                made.append(self._next(awaited))
                made[-1].introduce(awaited)
        except BaseException:
            for each in made:
                each.close()
            raise
        return sorted(made, key=lambda each: each.number)

    def _next(self, awaited: list[int]) -> Channel:
        """Of this user."""
        while True:
            self._socket.settimeout(self._deadline.left_s)
            try:
                connected, _ = self._socket.accept()
            except TimeoutError:
                told = f"receivers {awaited} did not connect within {self._deadline.seconds:g} s"
                raise PeerLostError(told) from None
            channel = Channel(connected, self._deadline, "a receiver")
            if channel.user() == os.getuid():
                return channel
            channel.close()

    def close(self) -> None:
        self._socket.close()


class Channel:
    """Both ends; whatever goes wrong with it is a PeerLostError."""

    def __init__(self, connected: socket.socket, deadline: Deadline, peer: str) -> None:
        self._socket = connected
        self._deadline = deadline
        self.peer, self.number = peer, -1

    @classmethod
    def connect(cls, name: str, number: int, deadline: Deadline) -> Channel:
        """To the listener of that name, as its peer of that number.

        Raises:
            PeerLostError: nobody listens.
            RefitError: another user's process does.
        """
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = cls(connected, deadline, "the sender")
        try:
            connected.settimeout(deadline.left_s)
            connected.connect(f"\0{name}")
            channel.check_user()
            channel.send(number)
        except OSError as error:
            channel.close()
            raise PeerLostError(f"the sender does not listen: {error}") from error
        except RefitError:
            channel.close()
            raise
        return channel

    def introduce(self, awaited: Collection[int]) -> None:
        """Learn which receiver is at the other end. Raises RefitError if it is none of those that are awaited."""
        self.number = self.receive()
        if self.number not in awaited:
            raise RefitError(f"a receiver of number {self.number} connected, where {awaited} are awaited")
        self.peer = f"receiver {self.number}"

    def check_user(self) -> None:
        """Raise RefitError unless the other end is of this process's user."""
        if (user := self.user()) != os.getuid():
            raise RefitError(f"a process of another user ({user}) listens as {self.peer} of the weights")

    def user(self) -> int:
        """Whose process is at the other end, as the kernel tells."""
        raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(raw)
        return int(user)

    def send(self, word: int) -> None:
        self.send_bytes(_WORD.pack(word))

    def receive(self) -> int:
        """The next word."""
        word: int = _WORD.unpack(self.receive_bytes(_WORD.size))[0]
        return word

    def expect(self, word: int) -> None:
        """Receive `word`. Raises RefitError if it is another."""
        if (received := self.receive()) != word:
            raise RefitError(f"{self.peer} is at message {received} instead of {word}")

    def send_bytes(self, data: bytes) -> None:
        try:
            self._socket.settimeout(self._deadline.left_s)
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def receive_bytes(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                self._socket.settimeout(self._deadline.left_s)
                piece = self._socket.recv(count - len(data))
            except OSError as error:
                raise self._lost(error) from error
            if not piece:
                raise PeerLostError(f"{self.peer} has gone or given up")
            data += piece
        return data

    def send_file(self, descriptor: int) -> None:
        """Let the other end open what is open here."""
        try:
            self._socket.settimeout(self._deadline.left_s)
            socket.send_fds(self._socket, [b"f"], [descriptor])
        except OSError as error:
            raise self._lost(error) from error

    def receive_file(self) -> int:
        """A descriptor, to be closed."""
        try:
            self._socket.settimeout(self._deadline.left_s)
            data, found, _, _ = socket.recv_fds(self._socket, 1, 1)
        except OSError as error:
            raise self._lost(error) from error
        if not data or not found:
            raise PeerLostError(f"{self.peer} has gone or given up")
        return found[0]

    def close(self) -> None:
        self._socket.close()

    def _lost(self, error: OSError) -> PeerLostError:
        if isinstance(error, TimeoutError):
            return PeerLostError(f"{self.peer} did nothing within {self._deadline.seconds:g} s")
        return PeerLostError(f"{self.peer} has gone: {error}")

"""A connection between two processes of one machine: small messages, each awaited no longer than a deadline.

The sockets have names in the kernel alone, which nobody can guess and which vanish with the process, however it ends. A
process of another user is refused.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

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


class Listener:
    """Waits to be connected to, under `name`."""

    def __init__(self, deadline_s: float) -> None:
        self.name = f"grpo-refit-{secrets.token_hex(16)}"
        self._deadline_s = deadline_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(64)
        self._socket.settimeout(deadline_s)

    def accept(self, count: int) -> list[Channel]:
        """Connections to so many peers, by their numbers.

        Raises:
            PeerLostError: they did not come in time.
            RefitError: another user's process connected.
        """
        found: dict[int, Channel] = {}
        while len(found) < count:
            try:
                connected, _ = self._socket.accept()
            except TimeoutError:
                missing = sorted(set(range(count)) - set(found))
                raise PeerLostError(f"receivers {missing} did not connect within {self._deadline_s:g} s") from None
            channel = Channel(connected, self._deadline_s, "a receiver")
            channel.check_user()
            number = channel.receive()
            channel.peer = f"receiver {number}"
            found[number] = channel
        return [found[number] for number in range(count)]

    def close(self) -> None:
        self._socket.close()


class Channel:
    """Both ends; whatever goes wrong with it is a PeerLostError."""

    def __init__(self, connected: socket.socket, deadline_s: float, peer: str) -> None:
        self._socket = connected
        self._socket.settimeout(deadline_s)
        self._deadline_s = deadline_s
        self.peer = peer

    @classmethod
    def connect(cls, name: str, number: int, deadline_s: float) -> Channel:
        """To the listener of that name, as its peer of that number."""
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = cls(connected, deadline_s, "the sender")
        try:
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

    def check_user(self) -> None:
        """Raise RefitError unless the other end is of this process's user."""
        raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process, user, _ = _CREDENTIALS.unpack(raw)
        if user != os.getuid():
            raise RefitError(f"process {process} of another user ({user}) connected to the weights' channel")

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
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def receive_bytes(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
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
            socket.send_fds(self._socket, [b"f"], [descriptor])
        except OSError as error:
            raise self._lost(error) from error

    def receive_file(self) -> int:
        """A descriptor, to be closed."""
        try:
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
            return PeerLostError(f"{self.peer} did nothing for {self._deadline_s:g} s")
        return PeerLostError(f"{self.peer} has gone: {error}")

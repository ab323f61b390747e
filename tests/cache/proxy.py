"""Stands between a client and a server, counts the commands, and does something at the one it was told of."""

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import hiredis

NOT_COUNTED = frozenset({b"PING", b"INFO", b"CLIENT", b"SELECT", b"AUTH", b"HELLO", b"READONLY"})
"""Watching and greeting: how often they are sent depends on the clock."""
Command = Sequence[bytes]
DROP = "drop"


@dataclass
class Proxy:
    """`commands` fill up as they pass. `before` sees each counted one (number from 1, words) and may take its time;

    `after` sees it once the server has answered, before the client gets to know.
    """

    server_port: int
    before: Callable[[int, Command], None] = lambda number, command: None
    after: Callable[[int, Command], object] | None = None
    """DROP: the client never hears the answer."""
    commands: list[Command] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: list[socket.socket] = field(default_factory=list)
    _dropped: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        _end(self._listener)
        self._threads[0].join()
        for one in self._open:
            _end(one)
        for thread in self._threads:
            thread.join()
        for one in (self._listener, *self._open):
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(client)
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                _end(client)
                continue
            self._open.append(server)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answered = threading.Semaphore(0)
            held = threading.Event()
            held.set()
            self._run(self._answers, server, client, answered, held)
            self._run(self._commands, client, server, answered, held)

    def _run(self, task: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=task, args=arguments, daemon=True))
        self._threads[-1].start()

    def _commands(self, client: socket.socket, server: socket.socket, answered: threading.Semaphore, held: threading.Event) -> None:
        reader = hiredis.Reader()
        try:
            while data := client.recv(1 << 20):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    self._pass(command, server, answered, held)
        except OSError:
            pass
        finally:
            _end(server)

    def _pass(self, command: Command, server: socket.socket, answered: threading.Semaphore, held: threading.Event) -> None:
        if command[0].upper() in NOT_COUNTED:
            server.sendall(_packed(command))
            return
        with self._lock:
            self.commands.append(command)
            number = len(self.commands)
        self.before(number, command)
        if self.after is None:
            server.sendall(_packed(command))
            return
        held.clear()
        while answered.acquire(blocking=False):
            pass
        server.sendall(_packed(command))
        answered.acquire(timeout=20)
        if self.after(number, command) == DROP:
            self._dropped.add(id(answered))
        held.set()

    def _answers(self, server: socket.socket, client: socket.socket, answered: threading.Semaphore, held: threading.Event) -> None:
        try:
            while data := server.recv(1 << 20):
                answered.release()
                held.wait(20)
                if id(answered) in self._dropped:
                    return
                client.sendall(data)
        except OSError:
            pass
        finally:
            answered.release()  # there will be none
            _end(client)


def _end(one: socket.socket) -> None:
    """A thread that waits for it wakes up; close() alone would leave it, and the connection, as they are."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _packed(command: Command) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in command)

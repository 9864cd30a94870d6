"""The transport of a daemon: the listening socket, its slots, its connections, whole messages.

One thread accepts, one thread serves each connection, at most ``pool_size`` of them. A full daemon
never reads from the peer that it refuses, so a silent one cannot stop it; the refusal is a message
built in advance. What may not live here: objects, methods, serialisation of arguments.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable

from broker.pyro_setup import (
    config,
    current_context,
    protocol,
    pyro_errors,
    serializers,
    socketutil,
)
from broker.remote.exposed import incident

if TYPE_CHECKING:
    from broker.remote.daemon import FairleadDaemon

log = logging.getLogger("fairlead.server")

BACKLOG = 256
CHUNK_BYTES = 128 << 10
HANDSHAKE_TIMEOUT_S = 5.0
REFUSED_COUNT_MAX = 64
REFUSED_LINGER_S = 1.0
CLOSE_GRACE_S = 0.4
HEADER_BYTES: int = protocol._header_size
TEXT_ID: int = serializers.JsonSerializer.serializer_id


class Connection(socketutil.SocketConnection):  # type: ignore[misc]
    """One accepted connection, with the peer's address asked for once.

    What has arrived is taken in one go and kept: a request is mostly one system call, and one
    change of thread, instead of one for its header and one for the rest.
    """

    def __init__(self, sock: socket.socket, peer: Any) -> None:
        super().__init__(sock)
        self.peer = peer
        self.arrived = b""

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes. Memory follows what arrived, not what a header announces."""
        arrived = self.arrived
        if len(arrived) < size:
            chunks = [arrived]
            missing = size - len(arrived)
            while missing > 0:
                chunk = self.sock.recv(CHUNK_BYTES)
                if not chunk:
                    raise pyro_errors.ConnectionClosedError("the peer has gone")
                chunks.append(chunk)
                missing -= len(chunk)
            arrived = b"".join(chunks)
        self.arrived = arrived[size:]
        return arrived[:size]


class Transport:
    """The listening socket, the thread that accepts and the slots."""

    def __init__(self, daemon: FairleadDaemon, host: str, port: int, pool_size: int) -> None:
        self.daemon = daemon
        self.pool_size = pool_size
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.sock: socket.socket | None = socket.create_server(
            (host, port), family=family, backlog=BACKLOG
        )
        self.sock.setblocking(False)
        bound = self.sock.getsockname()[1]
        self.locationStr = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        self._lock = threading.Lock()
        self._serving: dict[Connection, threading.Thread] = {}
        self._number = 0
        self._full = False
        self._refused: deque[tuple[float, socket.socket]] = deque()
        self._refusal = refusal(
            f"all {pool_size} connections of {daemon.name} at {self.locationStr} are in use: "
            "try again later, or raise its pool size"
        )
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.sock, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._stopped = threading.Event()
        self._looping = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.locationStr}; {self.count} of {self.pool_size}>"

    @property
    def count(self) -> int:
        """Slots in use."""
        return len(self._serving)

    @property
    def sockets(self) -> list[socket.socket]:
        """As Pyro5's transports have it: the listening socket."""
        return [self.sock] if self.sock is not None else []

    # --- Accepting ---

    def loop(self, condition: Callable[[], bool]) -> None:
        """Accept until closed. Nothing in here waits for a peer."""
        self._looping = True
        try:
            while not self._stopped.is_set() and condition():
                self._selector.select(0.2 if self._refused else 1.0)
                self._drop_refused(time.monotonic() - REFUSED_LINGER_S)
                self._accept_waiting()
        finally:
            self._release()

    def _accept_waiting(self) -> None:
        listening = self.sock
        while listening is not None and not self._stopped.is_set():
            try:
                accepted, peer = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if not self._stopped.wait(0.1):  # no file numbers left, most likely: do not spin
                    log.warning("%s: cannot accept: %s", self.daemon.name, error)
                return
            self._admit(accepted, peer)

    def _admit(self, accepted: socket.socket, peer: Any) -> None:
        connection = Connection(accepted, peer)
        with self._lock:
            free = len(self._serving) < self.pool_size and not self._stopped.is_set()
            if free:
                self._number += 1
                thread = threading.Thread(
                    target=self._serve, args=(connection,), daemon=True,
                    name=f"fairlead-{self.daemon.name}-{self._number}",
                )
                self._serving[connection] = thread
        if not free:
            self._refuse(connection)
            return
        self._full = False
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads
            log.warning("%s: no thread for %s: %s", self.daemon.name, peer, error)
            self._leave(connection)

    def _refuse(self, connection: Connection) -> None:
        """Tell why, without reading. The socket is kept for a moment: closing it at once, with the
        peer's greeting unread, would reset the connection and might take the reason away."""
        if not self._full:
            self._full = True  # one line each time that it becomes full, not one per attempt
            log.warning("%s: refused %s, all %d slots are in use",
                        self.daemon.name, connection.peer, self.pool_size)
        connection.keep_open = True  # from here on the socket is ours
        sock: socket.socket = connection.sock
        with suppress(OSError):
            sock.setblocking(False)
            sock.send(self._refusal)
            sock.shutdown(socket.SHUT_WR)
        self._refused.append((time.monotonic(), sock))
        if len(self._refused) > REFUSED_COUNT_MAX:
            self._refused.popleft()[1].close()

    def _drop_refused(self, before: float) -> None:
        while self._refused and self._refused[0][0] <= before:
            self._refused.popleft()[1].close()

    # --- Serving ---

    def _serve(self, connection: Connection) -> None:
        """The life of one connection, in its own thread."""
        daemon = self.daemon
        greeted = False
        try:
            tune(connection.sock)
            connection.settimeout(min(HANDSHAKE_TIMEOUT_S, config.COMMTIMEOUT))
            greeted = daemon._handshake(connection)
            connection.settimeout(daemon.idle_timeout_s)
            while greeted and not self._stopped.is_set():
                daemon.handleRequest(connection)
        except (OSError, pyro_errors.CommunicationError) as error:
            log.debug("%s: connection of %s ended: %s", daemon.name, connection.peer, error)
        except BaseException as error:
            incident(f"the connection of {connection.peer}", error)
        finally:
            self._leave(connection)
            if greeted:
                try:
                    daemon.clientDisconnect(connection)
                except BaseException as error:
                    incident("clientDisconnect", error)

    def _leave(self, connection: Connection) -> None:
        connection.close()
        with self._lock:
            self._serving.pop(connection, None)

    # --- Closing ---

    def close(self) -> None:
        """Stop accepting, let calls under way answer for a moment, then cut what is left."""
        with self._lock:
            self._stopped.set()
            serving = dict(self._serving)
        with suppress(OSError):
            self._wake_write.send(b"x")
        if not self._looping:
            self._release()
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            for connection in serving:
                with suppress(OSError):
                    connection.sock.shutdown(how)
            deadline = time.monotonic() + CLOSE_GRACE_S / 2
            for thread in serving.values():
                if thread is not threading.current_thread() and thread.ident is not None:
                    thread.join(max(0.0, deadline - time.monotonic()))
        left = [thread.name for thread in serving.values() if thread.is_alive()]
        if left:
            log.warning("%s: closed while %s still work", self.daemon.name, ", ".join(left))

    def _release(self) -> None:
        """Close what belongs to the accepting thread."""
        listening, self.sock = self.sock, None
        self._drop_refused(float("inf"))
        self._selector.close()
        for sock in (listening, self._wake_read, self._wake_write):
            if sock is not None:
                sock.close()


def receive(connection: Connection, kinds: tuple[int, ...], bytes_max: int) -> Any:
    """One message of the given kinds."""
    message = protocol.ReceivingMessage(connection.read(HEADER_BYTES))
    size = message.annotations_size + message.data_size
    if message.type not in kinds or size > bytes_max:
        raise pyro_errors.ProtocolError(
            f"a message of kind {message.type} with {size} bytes; "
            f"expected are kind {kinds} and {bytes_max} bytes at most"
        )
    message.add_payload(connection.read(size))
    return message


def send(
    sock: socket.socket, kind: int, flags: int, seq: int, serializer_id: int, payload: bytes
) -> None:
    """Send one whole message; no annotation and no correlation id of another call goes with it."""
    current_context.correlation_id = None
    sock.sendall(protocol.SendingMessage(kind, flags, seq, serializer_id, payload).data)


def text_payload(reason: str) -> bytes:
    """A text as the payload of a message that any client can read."""
    return bytes(serializers.serializers_by_id[TEXT_ID].dumps(reason))


def refusal(reason: str) -> bytes:
    """The whole message that a peer is sent when no slot is free."""
    message = protocol.SendingMessage(protocol.MSG_CONNECTFAIL, 0, 0, TEXT_ID, text_payload(reason))
    return bytes(message.data)


def tune(sock: socket.socket) -> None:
    """No delay for small answers, and a dead peer is noticed in seconds instead of hours."""
    silence_ms = int(config.COMMTIMEOUT * 1000)
    options = [
        (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", silence_ms),
    ]
    for level, option, value in options:
        number = getattr(socket, option, None)  # not every system has every option
        if number is not None:
            with suppress(OSError):
                sock.setsockopt(level, number, value)

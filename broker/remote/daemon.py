"""The hardened Pyro5 daemon: connections, slots and requests.

What lives here: ``FairleadDaemon``, a Pyro5 daemon that speaks the same wire protocol to any Pyro5
client, with a transport of its own. One thread accepts, one thread serves each connection, at most
``pool_size`` of them. Every rule below stands against something that the plain daemon does:

- A full daemon never reads from the peer that it refuses, so a silent one cannot stop it. The
  refusal is a message built in advance, and the peer sees the reason.
- A slot is freed in a ``finally``: no exception of any method, SystemExit included, can lose one.
- Oneway calls (a thread each, no order, no answer), batched calls (not atomic), calls with blobs
  (marshal) and streams are refused; compressed and oversized messages are bounded.
- Only the exposed methods of registered instances can be reached, by a table made when they are
  registered: no attribute of an object is ever looked up by a name that a caller sent.
- Annotations neither enter nor leave; tracebacks never leave.

Each daemon has its own limit, so that a broker can run one for publishing, one for acks and
heartbeats and one for administration, and none of them can use up the slots of another.

What may not live here: channels, the name server. Nothing here is TLS yet; when it comes, its
handshake belongs into the connection's thread, never into ``accept``.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, Callable

from broker.errors import BadRequest, BrokerError, BrokerStopping, MessageTooLarge
from broker.pyro_setup import (
    config,
    core,
    current_context,
    ensure_configured,
    protocol,
    pyro_errors,
    pyro_server,
    serializers,
    socketutil,
)
from broker.remote.exposed import incident

log = logging.getLogger("fairlead.server")

BACKLOG = 256
CHUNK_BYTES = 128 << 10
HANDSHAKE_BYTES_MAX = 64 << 10
HANDSHAKE_TIMEOUT_S = 5.0
SERPENT_BYTES_MAX = 2 << 20  # reading serpent can take some hundred times its size in memory
REFUSED_COUNT_MAX = 64
REFUSED_LINGER_S = 1.0
CLOSE_GRACE_S = 0.4
HEADER_BYTES: int = protocol._header_size
SERPENT_ID: int = serializers.SerpentSerializer.serializer_id
TEXT_ID: int = serializers.JsonSerializer.serializer_id
ACCEPTED_SERIALIZERS = frozenset(
    each.serializer_id
    for each in (
        serializers.SerpentSerializer,
        serializers.JsonSerializer,
        serializers.MsgpackSerializer,
    )
)
_REFUSED_FLAGS = {
    protocol.FLAGS_BATCH: "batched calls are not taken: they stop half way at an error; "
    "send one call with many messages",
    protocol.FLAGS_KEEPSERIALIZED: "calls with serialized blobs are not taken; "
    "send the arguments themselves",
}
_REFUSED_MASK = protocol.FLAGS_BATCH | protocol.FLAGS_KEEPSERIALIZED


class DaemonInterface:
    """What a daemon tells about itself: enough for proxies to work, no list of its objects."""

    def __init__(self, daemon: FairleadDaemon) -> None:
        self._daemon = daemon

    @pyro_server.expose  # type: ignore[untyped-decorator]
    def ping(self) -> None:
        """Answer."""

    @pyro_server.expose  # type: ignore[untyped-decorator]
    def get_metadata(self, objectId: str) -> dict[str, set[str]]:
        """The exposed methods of one object, as Pyro5's proxies ask for them."""
        return self._daemon.metadata(objectId)


class FairleadDaemon(pyro_server.Daemon):  # type: ignore[misc]
    """A Pyro5 daemon with its own slots. ``start`` serves in the background until ``close``.

    ``idle_timeout_s``: a connection without a request for so long is dropped. ``name`` is what the
    threads and log lines are called by. With ``nathost`` the URIs name that host instead.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        pool_size: int = 64,
        *,
        name: str = "daemon",
        idle_timeout_s: float = 300.0,
        nathost: str | None = None,
        natport: int | None = None,
    ) -> None:
        # Pyro5's own constructor would start its own transport, so it is not called; the fields
        # that its other methods use are set here.
        self.transportServer: _Transport | None = None
        ensure_configured()
        if pool_size < 1:
            raise BadRequest(f"pool_size is {pool_size}: give at least 1")
        self.name = name
        self.idle_timeout_s = idle_timeout_s
        self.stopping = False
        self.objectsById: dict[str, Any] = {}
        self.streaming_responses: dict[str, Any] = {}
        self._methods: dict[str, dict[str, Callable[..., Any]]] = {}
        self._accepting: threading.Thread | None = None
        self.transportServer = _Transport(self, host, port, pool_size)
        self.locationStr: str = self.transportServer.locationStr
        self.natLocationStr: str | None = None
        if nathost:
            self.natLocationStr = f"{nathost}:{natport or self.port}"
        self.register(DaemonInterface(self), core.DAEMON_NAME)

    def __repr__(self) -> str:
        used = "closed" if self.stopping else f"{self.connection_count} connections"
        return f"<{type(self).__name__} {self.name} at {self.locationStr}; {used}>"

    # --- Life ---

    @property
    def port(self) -> int:
        """The port that the daemon listens on, known even when 0 was asked for."""
        return int(self.locationStr.rsplit(":", 1)[1])

    @property
    def connection_count(self) -> int:
        """How many slots are in use."""
        return self.transportServer.count if self.transportServer else 0

    def start(self) -> FairleadDaemon:
        """Serve in a thread of its own."""
        if self._accepting is None:
            self._accepting = threading.Thread(
                target=self.requestLoop, name=f"fairlead-{self.name}-accept", daemon=True
            )
            self._accepting.start()
        return self

    def requestLoop(self, loopCondition: Callable[[], bool] = lambda: True) -> None:
        """Serve in the calling thread until ``close``."""
        transport = self.transportServer
        if transport is not None:
            transport.loop(loopCondition)

    def close(self) -> None:
        """Stop: calls under way may still answer for a moment, then every connection is cut."""
        transport, self.transportServer = self.transportServer, None
        self.stopping = True
        if transport is None:
            return
        transport.close()
        if self._accepting not in (None, threading.current_thread()):
            assert self._accepting is not None
            self._accepting.join(CLOSE_GRACE_S)
        self.objectsById.clear()
        self._methods.clear()

    shutdown = close

    @property
    def _shutting_down(self) -> bool:
        return self.stopping

    # --- Objects ---

    def register(
        self, obj_or_class: Any, objectId: str | None = None, force: bool = False,
        weak: bool = False,
    ) -> Any:
        """Make an instance reachable and return its URI. Classes are refused: Pyro5 would make an
        object of them for every connection."""
        if isinstance(obj_or_class, type) or weak:
            raise TypeError(f"register an instance, and hold it: {obj_or_class!r}")
        members = pyro_server._get_exposed_members(obj_or_class)
        if members["oneway"] or members["attrs"] or not members["methods"]:
            raise TypeError(
                f"{obj_or_class!r} must expose methods, and no oneway method or property: {members}"
            )
        methods = {name: getattr(obj_or_class, name) for name in members["methods"]}
        uri = super().register(obj_or_class, objectId, force)
        self._methods[uri.object] = methods
        return uri

    def unregister(self, objectOrId: Any) -> None:
        """Make an object unreachable."""
        found = objectOrId if isinstance(objectOrId, str) else getattr(objectOrId, "_pyroId", "")
        super().unregister(objectOrId)
        if found != core.DAEMON_NAME:
            self._methods.pop(found, None)

    def metadata(self, object_id: str) -> dict[str, set[str]]:
        """What a proxy has to know of an object."""
        return {"methods": set(self._object(object_id)), "oneway": set(), "attrs": set()}

    def _object(self, object_id: Any) -> dict[str, Callable[..., Any]]:
        methods = self._methods.get(object_id) if isinstance(object_id, str) else None
        if methods is None:
            raise pyro_errors.DaemonError(f"unknown object: {object_id!r:.200}")
        return methods

    # --- Requests ---

    def _handshake(self, conn: Any, denied_reason: str | None = None) -> bool:
        """Answer a peer's first message; False when the connection is not taken."""
        message = _receive(conn, (protocol.MSG_CONNECT,), HANDSHAKE_BYTES_MAX)
        kind, used = protocol.MSG_CONNECTOK, message.serializer_id
        try:
            serializer = _serializer(used)
            asked = serializer.loads(message.data)
            greeting = self.validateHandshake(conn, asked["handshake"])
            answer = {"handshake": greeting, "meta": self.metadata(asked["object"])}
            payload = serializer.dumps(answer)
        except Exception as error:
            log.info("%s: connection refused: %s", self.name, error)
            kind, used, payload = protocol.MSG_CONNECTFAIL, TEXT_ID, _text(str(error))
        _send(conn.sock, kind, 0, message.seq, used, payload)
        return bool(kind == protocol.MSG_CONNECTOK)

    def handleRequest(self, conn: Any) -> None:
        """Serve one message. Raises ConnectionClosedError when the connection has to end."""
        message = _receive(
            conn, (protocol.MSG_INVOKE, protocol.MSG_PING), config.MAX_MESSAGE_SIZE
        )
        if message.type == protocol.MSG_PING:
            _send(conn.sock, protocol.MSG_PING, 0, message.seq, message.serializer_id, b"pong")
            return
        if message.flags & protocol.FLAGS_ONEWAY:
            raise pyro_errors.ConnectionClosedError("oneway calls are not taken: nobody could be "
                                                    "told whether they succeeded")
        serializer = serializers.serializers_by_id.get(message.serializer_id)
        if serializer is None:
            raise pyro_errors.ConnectionClosedError(f"unknown serializer {message.serializer_id}")
        context = current_context
        context.annotations = {}
        context.response_annotations = {}
        flags = 0
        try:
            payload = serializer.dumps(self._call(conn, message, serializer))
            if len(payload) > config.MAX_MESSAGE_SIZE:
                raise MessageTooLarge(
                    f"the answer has {len(payload)} bytes, a message {config.MAX_MESSAGE_SIZE} at "
                    "most; ask for less at once", limit_bytes=config.MAX_MESSAGE_SIZE,
                )
        except BaseException as error:
            flags, payload = protocol.FLAGS_EXCEPTION, _failure(serializer, error)
        finally:
            context.response_annotations = {}
            context.client = context.client_sock_addr = None
        _send(conn.sock, protocol.MSG_RESULT, flags, message.seq, message.serializer_id, payload)

    def _call(self, conn: Any, message: Any, serializer: Any) -> Any:
        """Find the method that the message asks for and call it."""
        if message.flags & _REFUSED_MASK:
            raise BadRequest(
                next(text for flag, text in _REFUSED_FLAGS.items() if message.flags & flag)
            )
        if self.stopping:
            raise BrokerStopping("the daemon is stopping: call again when it is back")
        object_id, method_name, args, kwargs = _arguments(message, serializer)
        methods = self._object(object_id)
        method = methods.get(method_name) if isinstance(method_name, str) else None
        if method is None:
            raise BadRequest(f"{object_id} has no exposed method {method_name!r:.200}")
        context = current_context
        context.client = conn
        context.client_sock_addr = conn.peer
        context.seq = message.seq
        context.msg_flags = message.flags
        context.serializer_id = message.serializer_id
        try:
            result = method(*args, **kwargs)
        except Exception:
            raise
        except BaseException as error:
            raise incident(method_name, error) from None
        if hasattr(type(result), "__next__"):
            raise incident(method_name, TypeError("an exposed method returned an iterator"))
        return result


class _Connection(socketutil.SocketConnection):  # type: ignore[misc]
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


class _Transport:
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
        self._serving: dict[_Connection, threading.Thread] = {}
        self._number = 0
        self._full = False
        self._refused: deque[tuple[float, socket.socket]] = deque()
        self._refusal = _refusal(
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
        connection = _Connection(accepted, peer)
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

    def _refuse(self, connection: _Connection) -> None:
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

    def _serve(self, connection: _Connection) -> None:
        """The life of one connection, in its own thread."""
        daemon = self.daemon
        greeted = False
        try:
            _tune(connection.sock)
            connection.settimeout(min(HANDSHAKE_TIMEOUT_S, config.COMMTIMEOUT))
            greeted = daemon._handshake(connection)
            connection.settimeout(daemon.idle_timeout_s)
            while greeted and not self._stopped.is_set():
                daemon.handleRequest(connection)
        except (OSError, pyro_errors.CommunicationError) as error:
            log.info("%s: connection of %s ended: %s", daemon.name, connection.peer, error)
        except BaseException as error:
            incident(f"the connection of {connection.peer}", error)
        finally:
            self._leave(connection)
            if greeted:
                try:
                    daemon.clientDisconnect(connection)
                except BaseException as error:
                    incident("clientDisconnect", error)

    def _leave(self, connection: _Connection) -> None:
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


# --- Messages ------------------------------------------------------------------------------------


def _receive(connection: _Connection, kinds: tuple[int, ...], bytes_max: int) -> Any:
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


def _send(
    sock: socket.socket, kind: int, flags: int, seq: int, serializer_id: int, payload: bytes
) -> None:
    current_context.correlation_id = None
    sock.sendall(protocol.SendingMessage(kind, flags, seq, serializer_id, payload).data)


def _serializer(serializer_id: int) -> Any:
    if serializer_id not in ACCEPTED_SERIALIZERS:
        raise BadRequest(f"serializer {serializer_id} is refused: use msgpack, serpent or json")
    return serializers.serializers_by_id[serializer_id]


def _arguments(message: Any, serializer: Any) -> Any:
    """Object, method, positional and named arguments of a call."""
    size = len(message.data)
    if serializer.serializer_id == SERPENT_ID and size > SERPENT_BYTES_MAX:
        raise MessageTooLarge(
            f"a call of {size} bytes in serpent, {SERPENT_BYTES_MAX} are the limit; "
            "send less in one call, or set Pyro5.config.SERIALIZER = 'msgpack'",
            limit_bytes=SERPENT_BYTES_MAX,
        )
    _serializer(serializer.serializer_id)
    try:
        object_id, method, args, kwargs = serializer.loadsCall(message.data)
        return object_id, method, tuple(args), dict(kwargs or {})
    except Exception as error:
        raise BadRequest(
            f"the call cannot be read: {type(error).__name__}: {str(error)[:200]}"
        ) from None


def _failure(serializer: Any, error: BaseException) -> bytes:
    """An error as the payload of an answer, without its traceback."""
    if not isinstance(error, Exception):
        error = incident("answering a call", error)
    if not isinstance(error, BrokerError):
        error.__dict__["_pyroTraceback"] = []
    try:
        return bytes(serializer.dumps(error))
    except Exception as unserializable:
        return bytes(serializer.dumps(incident("writing an answer", unserializable)))


def _text(reason: str) -> bytes:
    return bytes(serializers.serializers_by_id[TEXT_ID].dumps(reason))


def _refusal(reason: str) -> bytes:
    message = protocol.SendingMessage(protocol.MSG_CONNECTFAIL, 0, 0, TEXT_ID, _text(reason))
    return bytes(message.data)


def _tune(sock: socket.socket) -> None:
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

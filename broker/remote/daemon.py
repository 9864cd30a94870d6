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
import threading
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
)
from broker.remote.exposed import incident
from broker.remote.transport import CLOSE_GRACE_S, TEXT_ID, Transport, receive, send, text_payload

log = logging.getLogger("fairlead.server")

HANDSHAKE_BYTES_MAX = 64 << 10
SERPENT_BYTES_MAX = 2 << 20  # reading serpent can take some hundred times its size in memory
SERPENT_ID: int = serializers.SerpentSerializer.serializer_id
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
        self.transportServer: Transport | None = None
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
        self.transportServer = Transport(self, host, port, pool_size)
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
        message = receive(conn, (protocol.MSG_CONNECT,), HANDSHAKE_BYTES_MAX)
        kind, used = protocol.MSG_CONNECTOK, message.serializer_id
        try:
            serializer = _serializer(used)
            asked = serializer.loads(message.data)
            greeting = self.validateHandshake(conn, asked["handshake"])
            answer = {"handshake": greeting, "meta": self.metadata(asked["object"])}
            payload = serializer.dumps(answer)
        except Exception as error:
            log.info("%s: connection refused: %s", self.name, error)
            kind, used, payload = protocol.MSG_CONNECTFAIL, TEXT_ID, text_payload(str(error))
        send(conn.sock, kind, 0, message.seq, used, payload)
        return bool(kind == protocol.MSG_CONNECTOK)

    def handleRequest(self, conn: Any) -> None:
        """Serve one message. Raises ConnectionClosedError when the connection has to end."""
        message = receive(
            conn, (protocol.MSG_INVOKE, protocol.MSG_PING), config.MAX_MESSAGE_SIZE
        )
        if message.type == protocol.MSG_PING:
            send(conn.sock, protocol.MSG_PING, 0, message.seq, message.serializer_id, b"pong")
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
        send(conn.sock, protocol.MSG_RESULT, flags, message.seq, message.serializer_id, payload)

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

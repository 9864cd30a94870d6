"""The one place that touches Pyro5's global state, and the one way to call through a proxy.

What lives here, for servers and clients alike:

- ``configure``: every global setting, taken from the code and never from the environment.
- The hardening of Pyro's message layer: no marshal, bounded decompression, no exception from a
  peer that would pass ``except Exception``.
- The transport of our errors. A ``BrokerError`` travels as a builtin ``RuntimeError`` whose text is
  ``code: message``, so a plain Pyro5 script with no Fairlead installed sees an exception it knows,
  with ``code``, ``retriable``, ``definite`` and ``details`` as attributes. (A class that the
  receiver does not know would arrive as Pyro's ``SerializeError``, with our text lost.) A process
  that called ``configure`` gets the very class of ``broker.errors`` back.
- ``invoke``: the calls of our own parts. It raises ``BrokerError`` only. A proxy belongs to the
  thread that made it: each of our threads makes its own, and none is ever handed on.

What may not: anything about channels or the name server, any import from the project other than
``broker.errors``. The rest of the project imports Pyro5 from here, so that the variables
``PYRO_*`` are out of sight when Pyro5 reads them.
"""

from __future__ import annotations

import os
import types
import zlib
from contextlib import contextmanager, suppress
from typing import Any, Iterator

from broker.errors import (
    BadRequest,
    BrokerError,
    BrokerUnavailable,
    InternalError,
    MessageTooLarge,
    from_dict,
)


@contextmanager
def _without_pyro_variables() -> Iterator[None]:
    """Hide ``PYRO_*``: Pyro5 obeys them at import, and an unknown one makes the import fail.

    They are put back for the sake of child processes. Where Pyro5 was imported before us nothing
    can be hidden any more, and ``configure`` overrules what they have set.
    """
    hidden = {name: os.environ[name] for name in os.environ if name.startswith("PYRO_")}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


with _without_pyro_variables():
    from Pyro5 import config, core, protocol, serializers, socketutil
    from Pyro5 import errors as pyro_errors
    from Pyro5 import nameserver as pyro_nameserver
    from Pyro5 import server as pyro_server
    from Pyro5.callcontext import current_context
    from Pyro5.client import Proxy

# What the rest of the project uses of Pyro5, it takes from here: then the order of the imports
# in a file cannot let Pyro5 see the environment.
__all__ = [
    "configure", "direct_uri", "ensure_configured", "error_to_wire", "invoke", "restore",
    "Proxy", "config", "core", "current_context", "protocol", "pyro_errors", "pyro_nameserver",
    "pyro_server", "serializers", "socketutil",
]

MARSHAL_ID: int = serializers.MarshalSerializer.serializer_id
DETAILS_DEPTH_MAX = 8

# The name under which our errors travel. Pyro5 itself writes "builtins.RuntimeError" and reads
# both, so a converter for the short name touches nobody else's errors.
_WIRE_CLASS = "RuntimeError"

_configured = False


# --- Global settings -----------------------------------------------------------------------------


def configure(
    max_message_bytes: int = 16 << 20, comm_timeout_s: float = 30.0, pool_size: int = 64
) -> None:
    """Set every global of Pyro5 for this process. May be called again, to change the numbers.

    ``comm_timeout_s`` is the longest silence inside one call, both ways: a long poll has to stay
    below half of it. ``pool_size`` only matters to plain Pyro5 daemons; ours take their own.
    """
    global _configured
    if max_message_bytes < 1 << 16:
        raise BadRequest(f"max_message_bytes is {max_message_bytes}: give at least {1 << 16}")
    if comm_timeout_s <= 0:
        raise BadRequest(f"comm_timeout_s is {comm_timeout_s}: give more than 0, or calls hang")
    if pool_size < 1:
        raise BadRequest(f"pool_size is {pool_size}: give at least 1")
    config.reset(use_environment=False)
    config.SERIALIZER = "msgpack"
    config.SERVERTYPE = "thread"
    config.MAX_MESSAGE_SIZE = max_message_bytes
    config.COMMTIMEOUT = comm_timeout_s
    config.POLLTIMEOUT = 0.5
    config.MAX_RETRIES = 0  # a blind resend applies a call twice
    config.ITER_STREAMING = False
    config.DETAILED_TRACEBACK = False
    config.LOGWIRE = False
    config.COMPRESSION = False
    config.SOCK_NODELAY = True
    config.THREADPOOL_SIZE_MIN = 1
    config.THREADPOOL_SIZE = pool_size
    config.BROADCAST_ADDRS = []  # whoever answers a broadcast first would be our name server
    config.NS_AUTOCLEAN = 0.0  # it connects to every registered address
    _harden()
    _configured = True


def ensure_configured() -> None:
    """Call ``configure`` with its defaults unless it was called already."""
    if not _configured:
        configure()


class _MarshalRefused(serializers.MarshalSerializer):  # type: ignore[misc]
    """Marshal's entry: stays, since Pyro5 names its id on error paths, but reads nothing."""

    def loads(self, data: Any) -> Any:
        raise pyro_errors.SerializeError("marshal is refused: use msgpack, serpent or json")

    loadsCall = loads


def _decompress(data: Any) -> bytes:
    """Like ``zlib.decompress``, but never more than a message may have."""
    limit: int = config.MAX_MESSAGE_SIZE
    stream = zlib.decompressobj()
    try:
        out = stream.decompress(data, limit + 1)
    except zlib.error as error:
        raise pyro_errors.ProtocolError(f"damaged compressed message: {error}") from None
    if len(out) > limit:
        raise pyro_errors.ProtocolError(f"message too large once decompressed (max={limit})")
    if not stream.eof:
        raise pyro_errors.ProtocolError("compressed message is cut short")
    return out


def _make_exception(exception_type: type[BaseException], data: dict[str, Any]) -> Exception:
    """Rebuild an exception that a peer sent; what is no ``Exception`` becomes a RuntimeError.

    Otherwise a rogue peer could raise SystemExit or KeyboardInterrupt in us. It need not send any
    mark that would tell such a one from a real one, so it must not come into being.
    """
    arguments = data.get("args") or ()
    if issubclass(exception_type, Exception):
        error = exception_type(*arguments)
    else:
        error = RuntimeError(f"the peer raised {exception_type.__name__}: {arguments!r:.200}")
    for name, value in dict(data.get("attributes") or {}).items():
        if isinstance(name, str) and not name.startswith("__"):
            setattr(error, name, value)
    return error


def _harden() -> None:
    """Put our stricter parts into Pyro5's tables; repeating it changes nothing."""
    base = serializers.SerializerBase
    serializers.serializers_by_id[MARSHAL_ID] = _MarshalRefused()
    protocol.zlib = types.SimpleNamespace(compress=zlib.compress, decompress=_decompress)
    base.make_exception = staticmethod(_make_exception)
    # Both tables ask isinstance, so the base class covers the whole tree, later classes included.
    base.register_class_to_dict(BrokerError, error_to_wire)
    base.register_dict_to_class(_WIRE_CLASS, _error_from_wire)


# --- The transport of errors ---------------------------------------------------------------------


def error_to_wire(error: BrokerError) -> dict[str, Any]:
    """The error in the form that Pyro5 reads as a builtin exception. No traceback travels."""
    fields = error.to_dict()
    fields["details"] = _plain(error.details)
    fields["fairlead"] = True
    fields["_pyroTraceback"] = []
    return {
        "__class__": _WIRE_CLASS,
        "__exception__": True,
        "args": [f"{error.code}: {error.message}"],
        "attributes": fields,
    }


def restore(error: BaseException) -> BrokerError | None:
    """The BrokerError that ``error`` carries, or None when it comes from elsewhere."""
    if isinstance(error, BrokerError):
        return error
    fields = getattr(error, "__dict__", {})
    return _from_fields(fields) if fields.get("fairlead") is True else None


def _error_from_wire(_name: str, data: dict[str, Any]) -> Exception:
    fields = data.get("attributes")
    if isinstance(fields, dict) and fields.get("fairlead") is True:
        return _from_fields(fields)
    return _make_exception(RuntimeError, data)


def _from_fields(fields: dict[str, Any]) -> BrokerError:
    details = fields.get("details")
    named = details.items() if isinstance(details, dict) else ()
    safe = {k: v for k, v in named if isinstance(k, str) and k not in ("self", "message")}
    return from_dict({**fields, "details": safe})


def _plain(value: Any, depth: int = 0) -> Any:
    """``value`` in types that every serializer carries; what does not fit becomes its text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth < DETAILS_DEPTH_MAX:
        if isinstance(value, dict):
            return {str(key): _plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [_plain(item, depth + 1) for item in value]
    return repr(value)


# --- Calls ---------------------------------------------------------------------------------------


def invoke(proxy: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    """Call ``method`` through ``proxy``; whatever goes wrong is raised as a BrokerError.

    What the peer raised comes back as its own class. When no answer came it is BrokerUnavailable,
    with ``details["fault"]`` naming the kind and ``details["sent"]`` False where the request
    surely never left. Only a KeyboardInterrupt or SystemExit of our own process passes through.
    """
    current_context.annotations = {}  # those of a call that we serve are not ours to pass on
    sequence = proxy._pyroSeq
    try:
        return proxy._pyroInvoke(method, args, kwargs)
    except BrokerError:
        raise
    except Exception as error:
        raise _translate(proxy, method, error, proxy._pyroSeq != sequence) from error
    except BaseException as error:
        with suppress(pyro_errors.PyroError):
            proxy._pyroRelease()  # an answer may still be under way
        if hasattr(error, "_pyroTraceback"):
            raise _translate(proxy, method, error, True) from error
        raise


def _translate(proxy: Any, method: str, error: BaseException, sent: bool) -> BrokerError:
    """The BrokerError for a failed call. ``sent``: the request may have left this process."""
    known = restore(error)
    if known is not None:
        return known
    asked = f"{method} at {proxy._pyroUri}"
    text = f"{type(error).__name__}: {error}"
    if hasattr(error, "_pyroTraceback") and not _is_naming(error):
        return InternalError(
            f"{asked}: the peer failed with {text}; its log has more", remote=type(error).__name__
        )
    if not sent and not isinstance(error, (pyro_errors.PyroError, OSError)):
        return BadRequest(f"{asked}: the arguments cannot be sent ({text}); use builtin types")
    # Pyro5 drops the connection when an answer is bad, but not when a request is too large to send.
    unsent = not sent or proxy._pyroConnection is not None
    if unsent and isinstance(error, pyro_errors.SerializeError):
        return BadRequest(f"{asked}: the arguments cannot be sent ({text}); use builtin types")
    if unsent and isinstance(error, pyro_errors.ProtocolError) and "too large" in str(error):
        return MessageTooLarge(
            f"{asked}: {error}; send less in one call", limit_bytes=config.MAX_MESSAGE_SIZE
        )
    advice = "the outcome is unknown, repeat the same request" if sent else "nothing was sent"
    return BrokerUnavailable(
        f"{asked}: no answer ({text}); {advice}", fault=_fault(error), sent=sent
    )


def _is_naming(error: BaseException) -> bool:
    """A peer's word that it does not have what we ask for: it may have it again later."""
    return isinstance(error, (pyro_errors.NamingError, pyro_errors.DaemonError))


def _fault(error: BaseException) -> str:
    if isinstance(error, pyro_errors.TimeoutError | TimeoutError):
        return "timeout"
    if _is_naming(error) or "unknown object" in str(error):
        return "unknown-object"
    if isinstance(error, pyro_errors.ConnectionClosedError):
        return "closed"
    if isinstance(error, pyro_errors.ProtocolError):
        return "protocol"
    if "rejected" in str(error):
        return "refused"
    if isinstance(error, (pyro_errors.CommunicationError, OSError)):
        return "unreachable"
    return "other"


def direct_uri(name: str, host: str, port: int) -> str:
    """The ``PYRO:`` address of the object ``name`` at ``host`` and ``port``."""
    place = f"[{host}]" if ":" in host else host
    return str(core.URI(f"PYRO:{name}@{place}:{port}"))

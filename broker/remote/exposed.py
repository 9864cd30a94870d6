"""What a remote caller may reach: the decorator for exposed methods, and the list of them.

``remote`` is the only way in which Fairlead exposes a method. It lets a ``BrokerError`` through and
turns everything else, SystemExit included, into an ``InternalError`` that names an incident: the
traceback goes to the broker's log under that id and never to the caller.

What may not live here: channels, sockets, settings.
"""

from __future__ import annotations

import functools
import inspect
import logging
import secrets
import threading
from typing import Any, Callable, TypeVar

from broker.errors import BadRequest, BrokerError, InternalError
from broker.pyro_setup import current_context, pyro_server

log = logging.getLogger("fairlead.server")

Method = TypeVar("Method", bound=Callable[..., Any])


def remote(method: Method) -> Method:
    """Expose ``method`` to remote callers, guarded. Never on a class, a property or a generator.

    A local call of the method passes the same guard.
    """
    if inspect.isclass(method) or not inspect.isfunction(method):
        raise TypeError(f"@remote takes a method, not {method!r}")
    if inspect.isgeneratorfunction(method) or inspect.iscoroutinefunction(method):
        raise TypeError(f"@remote takes no generator or coroutine: {method.__qualname__}")

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except BrokerError:
            raise
        except BaseException as error:
            raise guarded_error(method, args, kwargs, error) from None

    exposed: Method = pyro_server.expose(guarded)
    return exposed


def guarded_error(
    method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException
) -> BaseException:
    """What the caller is told about ``error``: BadRequest if the arguments do not fit the method,
    otherwise InternalError with an incident id."""
    if isinstance(error, KeyboardInterrupt) and (
        threading.current_thread() is threading.main_thread()
    ):
        return error  # a local call, and a person at the keyboard: no worker is the main thread
    if isinstance(error, TypeError):
        misfit = _misfit(method, args, kwargs)
        if misfit is not None:
            return BadRequest(f"{method.__name__}: {misfit}; see the method's signature")
    return incident(method.__name__, error)


def incident(asked: str, error: BaseException) -> InternalError:
    """Log ``error`` with its traceback under a new id; return what the caller may know of it."""
    number = secrets.token_hex(4)
    log.error("incident %s: %s failed", number, asked, exc_info=error)
    return InternalError(
        f"{asked} failed inside the broker, incident {number}: the outcome is unknown; "
        "the broker's log has the cause under that id",
        incident=number,
    )


def _misfit(
    method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    try:
        inspect.signature(method).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def exposed_names(target: Any) -> frozenset[str]:
    """Every name of the object (or class) that a remote caller can reach."""
    members = pyro_server._get_exposed_members(target)
    return frozenset(members["methods"] | members["attrs"])


def caller_host() -> str | None:
    """The address of the host whose call this thread is serving; None outside a remote call."""
    address = current_context.client_sock_addr
    return str(address[0]) if address else None

"""Pipeline: several calls under way on one Pyro5 connection, answered in their order.

A Pyro5 proxy waits for each answer before it sends the next request, so a flood of calls is bound
by the round trip. The protocol does not ask for that: a daemon serves the requests of a connection
one after the other. What may not live here: any retry, any knowledge of what is called.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from broker.errors import BrokerError, BrokerUnavailable
from broker.pyro_setup import (
    Proxy,
    config,
    current_context,
    invoke,
    protocol,
    pyro_errors,
    restore,
    serializers,
)


class Pipeline:
    """Calls to one object. Belongs to the thread that uses it.

    After any BrokerError with ``definite`` False the connection is gone, and with it the answers of
    everything that was under way.
    """

    def __init__(self, uri: str, timeout_s: float) -> None:
        self._proxy = Proxy(uri)
        self._proxy._pyroTimeout = timeout_s
        self._serializer = serializers.serializers[config.SERIALIZER]
        self._sequences: deque[int] = deque()
        self._next = 0

    def __len__(self) -> int:
        """How many calls are under way."""
        return len(self._sequences)

    def call(self, method: str, *args: Any) -> Any:
        """An ordinary call; nothing else may be under way."""
        assert not self._sequences
        return invoke(self._proxy, method, *args)

    def send(self, method: str, *args: Any) -> None:
        """Send a request and do not wait for its answer."""
        proxy = self._proxy
        current_context.annotations = {}
        try:
            if proxy._pyroConnection is None:
                proxy._pyroBind()
            connection = proxy._pyroConnection
            self._next = (self._next + 1) & 0xFFFF
            data = self._serializer.dumpsCall(connection.objectId, method, args, {})
            message = protocol.SendingMessage(
                protocol.MSG_INVOKE, 0, self._next, self._serializer.serializer_id, data
            )
            connection.send(message.data)
        except Exception as error:
            raise self._broken(method, error) from error
        self._sequences.append(self._next)

    def receive(self) -> Any:
        """The answer to the oldest request under way; raises the BrokerError that it was."""
        connection = self._proxy._pyroConnection
        sequence = self._sequences.popleft()
        try:
            message = protocol.recv_stub(connection, [protocol.MSG_RESULT])
            if message.seq != sequence:
                raise pyro_errors.ProtocolError(
                    f"answer {message.seq} came instead of {sequence}"
                )
            answer = self._serializer.loads(message.data)
        except Exception as error:
            raise self._broken("an answer", error) from error
        if message.flags & protocol.FLAGS_EXCEPTION:
            known = restore(answer)
            if known is None and isinstance(answer, pyro_errors.DaemonError):
                known = BrokerUnavailable(
                    f"{self._proxy._pyroUri} is not there any more: it was deleted or has moved; "
                    "look it up again"
                )
            raise known if known is not None else BrokerError(f"the broker answered {answer!r}")
        return answer

    def close(self) -> None:
        """Let the connection go."""
        self._sequences.clear()
        self._proxy._pyroRelease()

    def _broken(self, what: str, error: Exception) -> BrokerError:
        self.close()
        known = restore(error)
        if known is not None:
            return known
        return BrokerUnavailable(
            f"{what} at {self._proxy._pyroUri}: no answer ({type(error).__name__}: {error}); the "
            "outcome is unknown, repeat the same request"
        )

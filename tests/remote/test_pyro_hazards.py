"""One test per hazard of Pyro5 (H3 ...), over real loopback connections.

Where a peer has to misbehave, the test speaks the wire protocol through a raw socket: ``Raw``.
"""

from __future__ import annotations

import gc
import json
import marshal
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
import zlib
from contextlib import suppress

import msgpack
import pytest

from broker import errors, pyro_setup
from broker.errors import BadRequest, BrokerError, BrokerUnavailable, InternalError
from broker.pyro_setup import (
    Proxy,
    config,
    current_context,
    invoke,
    protocol,
    pyro_errors,
    pyro_server,
    serializers,
)
from broker.remote.daemon import FairleadDaemon
from broker.remote.exposed import caller_host, exposed_names, remote

LIMIT_BYTES = 1 << 20
SERIALIZERS = ("serpent", "json", "msgpack")


def wait_until(condition, timeout_s=5.0):
    """Poll ``condition`` to a deadline; return its last value."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition() and time.monotonic() < deadline:
        pause.wait(0.005)
    return condition()


class Service:
    """The object under test: every way in which a method can go wrong."""

    def __init__(self):
        self.calls = 0
        self.entered = threading.Event()
        self.proceed = threading.Event()
        self.other = None
        self.secret = "plain attribute"

    @property
    def touched(self):
        self.calls += 1
        return self.calls

    def hidden(self):
        self.calls += 1

    @remote
    def echo(self, value):
        self.calls += 1
        return value

    @remote
    def fail(self, code):
        raise errors.BY_CODE[code](f"text of {code}", count=3, where=["a", "b"], key=("p", b"x"))

    @remote
    def bug(self):
        password = "hunter2"
        raise KeyError(password + "-" + __file__)

    @remote
    def exit(self):
        raise SystemExit(1)

    @pyro_server.expose
    def bare_exit(self):
        raise SystemExit(1)

    @pyro_server.expose
    def bare_error(self):
        raise ValueError("told")

    @remote
    def wait(self):
        self.calls += 1
        self.entered.set()
        self.proceed.wait(10)
        return "waited"

    @remote
    def numbers(self):
        return iter([1, 2, 3])

    @remote
    def annotate_and_fail(self):
        current_context.response_annotations = {"LEAK": b"of the first caller"}
        raise BadRequest("no")

    @remote
    def annotate(self):
        current_context.response_annotations = {"LEAK": b"of the first caller"}

    @remote
    def relay(self):
        current_context.annotations.setdefault("TEST", b"")
        with Proxy(self.other) as proxy:
            return invoke(proxy, "seen_annotations")

    @remote
    def big(self, size):
        return "x" * size

    @remote
    def host(self):
        return caller_host()


@pytest.fixture(autouse=True)
def settings():
    pyro_setup.configure(max_message_bytes=LIMIT_BYTES, comm_timeout_s=2.0)
    yield
    current_context.annotations = {}
    current_context.response_annotations = {}


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def daemon(service):
    running = FairleadDaemon(pool_size=4, name="test")
    running.register(service, "service")
    running.start()
    yield running
    service.proceed.set()
    running.close()


@pytest.fixture
def proxy(daemon):
    with Proxy(f"PYRO:service@{daemon.locationStr}") as made:
        yield made


def frame(kind, payload=b"", *, flags=0, serializer=4, seq=1, announced=None, annotations=b""):
    size = len(payload) if announced is None else announced
    return struct.pack(
        "!4sHBBHHII16sHH", b"PYRO", 502, kind, serializer, flags, seq, size, len(annotations),
        b"\0" * 16, 0, 0x4DC5,
    ) + annotations + payload


class Raw:
    """A peer that writes what it likes."""

    def __init__(self, daemon, greet=True):
        self.sock = socket.create_connection(("127.0.0.1", daemon.port), timeout=5)
        if greet:
            hello = msgpack.packb({"handshake": "hello", "object": "service"})
            assert self.ask(frame(protocol.MSG_CONNECT, hello))[0] == protocol.MSG_CONNECTOK

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def call(self, method, *args, target="service", **options):
        payload = msgpack.packb((target, method, args, {}))
        return self.ask(frame(protocol.MSG_INVOKE, payload, **options))

    def ask(self, data):
        self.sock.sendall(data)
        return self.answer()

    def answer(self):
        """(kind, flags, payload), or None when the daemon has ended the connection."""
        head = self.read(40)
        if head is None:
            return None
        _, _, kind, _, flags, _, size, notes, *_ = struct.unpack("!4sHBBHHII16sHH", head)
        return kind, flags, self.read(size + notes)[notes:]

    def read(self, size):
        data = b""
        while len(data) < size:
            try:
                more = self.sock.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data


def refused(answer):
    """The code of a refusal, from an answer's payload."""
    assert answer is not None and answer[1] & protocol.FLAGS_EXCEPTION
    return msgpack.unpackb(answer[2])["attributes"]["code"]


# --- Messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("note", [marshal.dumps(("info", "service", "echo")), b"no marshal"])
def test_h3_calls_with_blobs_are_refused_and_marshal_is_never_read(daemon, service, note):
    annotations = b"BLBI" + struct.pack("!I", len(note)) + note
    with Raw(daemon) as raw:
        answer = raw.call(
            "echo", 1, flags=protocol.FLAGS_KEEPSERIALIZED, annotations=annotations
        )
        assert refused(answer) == "bad-request"
        assert raw.call("echo", 1)[1] == 0, "the connection goes on"
    assert service.calls == 1


def test_h4_a_compression_bomb_is_cut_off_at_the_message_limit(daemon, proxy):
    bomb = zlib.compress(b"\0" * (64 << 20), 9)
    assert len(bomb) < LIMIT_BYTES
    invoke(proxy, "echo", 1)
    with Raw(daemon) as raw:
        gc.collect()
        tracemalloc.start()
        try:
            answer = raw.ask(frame(protocol.MSG_INVOKE, bomb, flags=protocol.FLAGS_COMPRESSED))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert answer is None, "the connection is ended"
    assert peak < 8 * LIMIT_BYTES
    assert invoke(proxy, "echo", 1) == 1


def test_h4_a_client_that_compresses_honestly_is_served(proxy):
    config.COMPRESSION = True
    assert invoke(proxy, "echo", "x" * 5000) == "x" * 5000


@pytest.mark.parametrize("damage", [b"no zlib at all", zlib.compress(b"x" * 500)[:-8]])
def test_h4_damaged_compression_ends_the_connection_only(daemon, proxy, damage):
    with Raw(daemon) as raw:
        assert raw.ask(
            frame(protocol.MSG_INVOKE, damage, flags=protocol.FLAGS_COMPRESSED)
        ) is None
    assert invoke(proxy, "echo", 2) == 2


def test_h5_an_oversized_message_is_refused_by_its_header(daemon):
    with Raw(daemon) as raw:
        assert raw.ask(frame(protocol.MSG_INVOKE, announced=1 << 30)) is None
    with Raw(daemon, greet=False) as raw:
        assert raw.ask(frame(protocol.MSG_CONNECT, announced=LIMIT_BYTES)) is None


def test_h5_an_announced_size_reserves_no_memory(service):
    pyro_setup.configure(max_message_bytes=512 << 20, comm_timeout_s=2.0)
    daemon = FairleadDaemon(pool_size=4)
    daemon.register(service, "service")
    daemon.start()
    tracemalloc.start()
    try:
        with Raw(daemon) as raw:
            raw.sock.sendall(frame(protocol.MSG_INVOKE, announced=500 << 20) + b"x" * 1000)
            with Raw(daemon) as other:
                assert other.call("echo", 1)[1] == 0
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
        daemon.close()


def test_h5_a_request_that_is_too_large_is_a_definite_error_and_never_leaves(proxy, service):
    with pytest.raises(errors.MessageTooLarge) as caught:
        invoke(proxy, "echo", b"x" * (LIMIT_BYTES + 1))
    assert caught.value.definite and service.calls == 0
    assert invoke(proxy, "echo", 1) == 1


def test_h5_an_answer_that_is_too_large_is_told_instead_of_cutting_the_connection(proxy):
    with pytest.raises(errors.MessageTooLarge):
        invoke(proxy, "big", LIMIT_BYTES + 1)


def test_h6_a_large_serpent_message_is_refused(daemon, monkeypatch):
    monkeypatch.setattr("broker.remote.daemon.SERPENT_BYTES_MAX", 10_000)
    with Proxy(f"PYRO:service@{daemon.locationStr}") as plain:
        plain._pyroSerializer = "serpent"
        with pytest.raises(errors.MessageTooLarge):
            invoke(plain, "echo", "x" * 20_000)
        assert invoke(plain, "echo", "x" * 5_000)


def test_marshal_is_refused_at_the_handshake_and_in_a_call(daemon, service):
    with Raw(daemon, greet=False) as raw:
        hello = marshal.dumps({"handshake": "hello", "object": "service"})
        kind, _, reason = raw.ask(frame(protocol.MSG_CONNECT, hello, serializer=2))
        assert kind == protocol.MSG_CONNECTFAIL and "refused" in json.loads(reason)
    with Raw(daemon) as raw:
        call = marshal.dumps(("service", "echo", [1], {}))
        kind, flags, _ = raw.ask(frame(protocol.MSG_INVOKE, call, serializer=2))
        assert flags & protocol.FLAGS_EXCEPTION
    with pytest.raises(pyro_errors.SerializeError):
        serializers.serializers_by_id[2].loads(marshal.dumps(1))
    assert service.calls == 0


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_serpent_json_and_msgpack_are_accepted(daemon, serializer):
    with Proxy(f"PYRO:service@{daemon.locationStr}") as proxy:
        proxy._pyroSerializer = serializer
        assert proxy.echo({"a": [1, 2.5, None, "ä"]}) == {"a": [1, 2.5, None, "ä"]}


def test_an_unknown_serializer_ends_the_connection(daemon, proxy):
    with Raw(daemon) as raw:
        assert raw.call("echo", 1, serializer=77) is None
    assert invoke(proxy, "echo", 1) == 1


@pytest.mark.parametrize(
    "payload", [b"\xc1", b"\x93\x01\x02\x03", msgpack.packb([["service"], {"m": 1}, 5, 6])]
)
def test_a_call_that_cannot_be_read_is_a_bad_request(daemon, payload):
    with Raw(daemon) as raw:
        assert refused(raw.ask(frame(protocol.MSG_INVOKE, payload))) == "bad-request"
        assert raw.call("echo", 1)[1] == 0


# --- Connections ---------------------------------------------------------------------------------


def test_h7_each_daemon_has_its_own_slots(service):
    with FairleadDaemon(pool_size=1) as first, FairleadDaemon(pool_size=2) as second:
        first.register(service, "service")
        second.register(Service(), "service")
        first.start(), second.start()
        with Raw(first), Raw(second), Raw(second):
            with Raw(first, greet=False) as third:
                assert third.answer()[0] == protocol.MSG_CONNECTFAIL
            assert (first.connection_count, second.connection_count) == (1, 2)


def test_h8_a_full_daemon_refuses_with_a_reason_and_reads_nothing(daemon):
    held = [Raw(daemon) for _ in range(4)]
    # Silent peers: the plain daemon would wait for each of them on its accepting thread.
    silent = [Raw(daemon, greet=False) for _ in range(10)]
    started = time.monotonic()
    with Proxy(f"PYRO:service@{daemon.locationStr}") as late:
        with pytest.raises(BrokerUnavailable) as caught:
            invoke(late, "echo", 1)
    assert time.monotonic() - started < 1.0
    assert "all 4 connections of test" in str(caught.value)
    assert caught.value.details == {"fault": "refused", "sent": False}
    held.pop().sock.close()
    assert wait_until(lambda: daemon.connection_count < 4)
    with Raw(daemon) as accepted:
        assert accepted.call("echo", 1)[1] == 0
    for raw in held + silent:
        raw.sock.close()


def test_h8_peers_that_never_greet_lose_their_slots(service):
    pyro_setup.configure(comm_timeout_s=0.2)
    with FairleadDaemon(pool_size=2) as daemon:
        daemon.start()
        silent = [Raw(daemon, greet=False) for _ in range(2)]
        assert wait_until(lambda: daemon.connection_count == 2)
        assert wait_until(lambda: daemon.connection_count == 0)
        for raw in silent:
            raw.sock.close()


def test_h11_idle_connections_live_longer_than_a_call_may_be_silent(service):
    pyro_setup.configure(comm_timeout_s=0.1)
    with FairleadDaemon(pool_size=2, idle_timeout_s=0.5) as daemon:
        daemon.register(service, "service")
        daemon.start()
        with Raw(daemon) as raw:
            threading.Event().wait(0.25)  # the silence is what is tested
            assert raw.call("echo", 1)[1] == 0
            assert wait_until(lambda: daemon.connection_count == 0), "but not for ever"


def test_h11_after_a_timeout_the_late_answer_is_not_taken_for_the_next_one(proxy, service):
    proxy._pyroTimeout = 0.1
    with pytest.raises(BrokerUnavailable) as caught:
        invoke(proxy, "wait")
    assert caught.value.details == {"fault": "timeout", "sent": True}
    assert not caught.value.definite
    service.proceed.set()
    proxy._pyroTimeout = 2.0
    assert invoke(proxy, "echo", "mine") == "mine"


def test_h12_a_lost_answer_is_never_resent_by_the_transport(proxy, service):
    proxy._pyroTimeout = 0.1
    with pytest.raises(pyro_errors.TimeoutError):
        proxy.wait()  # the way in which Pyro5 itself would retry
    service.proceed.set()
    assert invoke(proxy, "echo", 1) == 1
    assert service.calls == 2, "one wait, one echo"


def test_h13_a_oneway_call_starts_no_thread_and_ends_the_connection(daemon, service):
    before = threading.active_count()
    with Raw(daemon) as raw:
        for _ in range(50):
            with suppress(OSError):
                payload = msgpack.packb(("service", "echo", (1,), {}))
                raw.sock.sendall(
                    frame(protocol.MSG_INVOKE, payload, flags=protocol.FLAGS_ONEWAY)
                )
        assert raw.read(1) is None
    assert wait_until(lambda: daemon.connection_count == 0)
    assert threading.active_count() <= before and service.calls == 0


def test_h13_an_object_with_a_oneway_method_is_not_registered(daemon):
    class Careless:
        @pyro_server.expose
        @pyro_server.oneway
        def fire(self):
            """Never called."""

    with pytest.raises(TypeError, match="oneway"):
        daemon.register(Careless())


@pytest.mark.parametrize("method", ["exit", "bare_exit"])
def test_h14_system_exit_in_a_method_loses_no_slot(daemon, method, caplog):
    caplog.set_level("CRITICAL", "fairlead.server")
    for _ in range(6):
        with Proxy(f"PYRO:service@{daemon.locationStr}") as proxy:
            with pytest.raises(InternalError):
                invoke(proxy, method)
            assert invoke(proxy, "echo", 1) == 1, "the same connection goes on"
    assert wait_until(lambda: daemon.connection_count == 0)


def test_h31_accepted_sockets_notice_dead_peers(daemon):
    with Raw(daemon):
        (connection,) = daemon.transportServer._serving
        sock = connection.sock
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2000


def test_h33_slots_are_counted_right_under_a_storm_of_connections(daemon):
    seen = []

    def storm():
        for _ in range(40):
            with suppress(BrokerError), Proxy(f"PYRO:service@{daemon.locationStr}") as proxy:
                invoke(proxy, "echo", 1)
            seen.append(daemon.connection_count)

    threads = [threading.Thread(target=storm) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 320 and max(seen) <= 4
    assert wait_until(lambda: daemon.connection_count == 0)


def test_close_is_quick_leaves_no_thread_and_lets_a_running_call_answer(service):
    daemon = FairleadDaemon(pool_size=8, name="closing")
    daemon.register(service, "service")
    daemon.start()
    idle = [Raw(daemon) for _ in range(5)]
    answers = []

    def call():
        with Proxy(f"PYRO:service@{daemon.locationStr}") as proxy:
            answers.append(invoke(proxy, "wait"))

    caller = threading.Thread(target=call)
    caller.start()
    assert service.entered.wait(5)
    threading.Timer(0.05, service.proceed.set).start()
    started = time.monotonic()
    daemon.close()
    assert time.monotonic() - started < 1.0
    caller.join(5)
    assert answers == ["waited"]
    assert not [t.name for t in threading.enumerate() if t.name.startswith("fairlead-closing")]
    for raw in idle:
        assert raw.read(1) is None
        raw.sock.close()
    daemon.close()


def test_close_does_not_wait_for_a_method_that_does_not_return(daemon, service):
    with Raw(daemon) as raw:
        raw.sock.sendall(frame(4, msgpack.packb(("service", "wait", (), {}))))
        assert service.entered.wait(5)
        started = time.monotonic()
        daemon.close()
        assert time.monotonic() - started < 1.0
        assert raw.read(1) is None
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", daemon.port), timeout=1)


# --- Calls and clients ---------------------------------------------------------------------------


class Rogue:
    """A server that answers any call with an exception of its choice."""

    def __init__(self, sent):
        self.sent = sent
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.uri = f"PYRO:x@127.0.0.1:{self.listening.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        sock, _ = self.listening.accept()
        meta = {"methods": ["ping"], "oneway": [], "attrs": []}
        hello = msgpack.packb({"handshake": "hello", "meta": meta})
        with sock, suppress(OSError):
            self._take(sock)
            sock.sendall(frame(protocol.MSG_CONNECTOK, hello, seq=0))
            self._take(sock)
            answer = msgpack.packb(self.sent)
            sock.sendall(frame(protocol.MSG_RESULT, answer, flags=1, seq=1))
            sock.recv(1)

    @staticmethod
    def _take(sock):
        head = sock.recv(40, socket.MSG_WAITALL)
        sock.recv(struct.unpack("!I", head[12:16])[0], socket.MSG_WAITALL)


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit"])
@pytest.mark.parametrize("attributes", [{}, {"_pyroTraceback": ["x"]}])
def test_h15_a_rogue_peer_cannot_raise_past_except_exception(name, attributes):
    rogue = Rogue({
        "__class__": f"builtins.{name}", "__exception__": True, "args": [1],
        "attributes": attributes,
    })
    with rogue.listening, Proxy(rogue.uri) as proxy, pytest.raises(BrokerError) as caught:
        invoke(proxy, "ping")
    assert name in str(caught.value)


@pytest.mark.parametrize("details", [5, {"message": "twice", "self": 1, "ok": 2}, {"1": None}])
def test_h15_a_malformed_error_of_ours_is_still_an_error_of_ours(details):
    rogue = Rogue({
        "__class__": "RuntimeError", "__exception__": True, "args": [],
        "attributes": {"fairlead": True, "code": "channel-full", "details": details},
    })
    with rogue.listening, Proxy(rogue.uri) as proxy, pytest.raises(errors.ChannelFull):
        invoke(proxy, "ping")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_h15_a_real_interrupt_passes_and_the_connection_is_dropped(proxy, monkeypatch, interrupt):
    invoke(proxy, "echo", 1)

    def interrupted(*_):
        raise interrupt

    with monkeypatch.context() as patched:
        patched.setattr(protocol, "recv_stub", interrupted)
        with pytest.raises(interrupt):
            invoke(proxy, "echo", 1)
    assert proxy._pyroConnection is None
    assert invoke(proxy, "echo", 2) == 2


def test_h17_a_proxy_of_another_thread_is_refused_before_anything_is_sent(daemon):
    proxy = Proxy(f"PYRO:service@{daemon.locationStr}")
    assert invoke(proxy, "echo", 1) == 1
    failed = []

    def work():
        try:
            invoke(proxy, "echo", 2)
        except BrokerError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(5)
    assert len(failed) == 1 and failed[0].details.get("sent") is not True
    assert invoke(proxy, "echo", 3) == 3
    proxy._pyroRelease()


def test_h20_a_class_is_not_registered(daemon):
    with pytest.raises(TypeError, match="instance"):
        daemon.register(Service)
    with pytest.raises(TypeError, match="instance"):
        daemon.register(Service(), weak=True)


@pytest.mark.parametrize("method", ["annotate_and_fail", "annotate"])
def test_h21_no_annotation_reaches_this_or_the_next_caller(service, method):
    hello = frame(1, msgpack.packb({"handshake": "hello", "object": "service"}))
    call = frame(4, msgpack.packb(("service", method, (), {})))
    with FairleadDaemon(pool_size=1) as daemon:
        daemon.register(service, "service")
        daemon.start()
        for _ in range(2):
            with Raw(daemon, greet=False) as raw:
                for request in (hello, call, call):
                    raw.sock.sendall(request)
                    head = raw.read(40)
                    size, annotations_size = struct.unpack("!II", head[12:20])
                    raw.read(size + annotations_size)
                    assert annotations_size == 0
            assert wait_until(lambda: daemon.connection_count == 0)


def test_h22_annotations_of_a_caller_do_not_flow_into_our_own_calls(daemon, service):
    class Third:
        @remote
        def seen_annotations(self):
            return sorted(current_context.annotations)

    sent = []
    original = protocol.SendingMessage

    class Watched(original):
        def __init__(self, kind, flags, seq, serializer, payload, annotations=None):
            if kind == protocol.MSG_INVOKE and b"seen_annotations" in payload:
                sent.append(dict(annotations or {}))
            super().__init__(kind, flags, seq, serializer, payload, annotations)

    with FairleadDaemon(pool_size=2) as third, pytest.MonkeyPatch.context() as patched:
        service.other = str(third.register(Third(), "third"))
        third.start()
        patched.setattr(protocol, "SendingMessage", Watched)
        token = b"TOKN" + struct.pack("!I", 6) + b"secret"
        with Raw(daemon) as raw:
            assert raw.call("relay", annotations=token)[1] == 0
    assert sent == [{}]


def test_h24_the_environment_neither_breaks_nor_changes_us():
    hostile = {
        "PYRO_HOST": "0.0.0.0", "PYRO_SSL": "true", "PYRO_XYZ": "1", "PYRO_MAX_RETRIES": "9",
        "PYRO_SERIALIZER": "marshal", "PYRO_LOGWIRE": "true", "PYRO_LOGLEVEL": "NOSUCH",
    }
    script = textwrap.dedent("""
        import os
        from broker import pyro_setup
        from broker.remote import daemon, exposed, name_server
        pyro_setup.configure()
        c = pyro_setup.config
        print(c.HOST, c.SSL, c.MAX_RETRIES, c.SERIALIZER, c.LOGWIRE, os.environ["PYRO_XYZ"])
    """)
    run = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **hostile}, capture_output=True,
        text=True, timeout=20,
    )
    assert run.stdout.split() == ["localhost", "False", "0", "msgpack", "False", "1"], run.stderr


def test_h24_settings_that_make_calls_hang_are_refused():
    for wrong in ({"comm_timeout_s": 0}, {"max_message_bytes": 10}, {"pool_size": 0}):
        with pytest.raises(BadRequest):
            pyro_setup.configure(**wrong)


def test_h26_the_daemon_does_not_list_its_objects(daemon):
    with Raw(daemon) as raw:
        for method in ("registered", "info", "get_next_stream_item", "close_stream"):
            assert refused(raw.call(method, target="Pyro.Daemon")) == "bad-request"
        assert raw.call("ping", target="Pyro.Daemon")[1] == 0
    with Proxy(f"PYRO:Pyro.Daemon@{daemon.locationStr}") as proxy:
        assert exposed_names(daemon.objectsById["Pyro.Daemon"]) == {"ping", "get_metadata"}
        assert proxy.ping() is None


def test_an_unknown_object_is_unavailable_and_says_so(daemon):
    with Proxy(f"PYRO:gone@{daemon.locationStr}") as proxy:
        with pytest.raises(BrokerUnavailable) as caught:
            invoke(proxy, "echo", 1)
    assert caught.value.details == {"fault": "unknown-object", "sent": False}
    with Proxy(f"PYRO:service@{daemon.locationStr}") as proxy:
        invoke(proxy, "echo", 1)
        daemon.unregister("service")
        with pytest.raises(BrokerUnavailable) as caught:
            invoke(proxy, "echo", 1)
    assert caught.value.details["fault"] == "unknown-object"


@pytest.mark.parametrize("method", ["bug", "exit", "fail", "numbers"])
def test_h27_no_traceback_and_no_internals_leave_the_broker(daemon, method, caplog):
    caplog.set_level("ERROR", "fairlead.server")
    with Raw(daemon) as raw:
        answer = raw.call(method, *(["channel-full"] if method == "fail" else []))
    for secret in (b"hunter2", b"Traceback (most", b".py", b"line "):
        assert secret not in answer[2]
    assert msgpack.unpackb(answer[2])["attributes"]["_pyroTraceback"] == []
    if method != "fail":
        incident = msgpack.unpackb(answer[2])["attributes"]["details"]["incident"]
        assert incident in caplog.text, "the log has the cause under the id that the caller got"


def test_h27_an_error_of_an_unguarded_method_travels_without_its_traceback(daemon):
    with Raw(daemon) as raw:
        told = msgpack.unpackb(raw.call("bare_error")[2])
    assert told["args"] == ["told"] and told["attributes"] == {"_pyroTraceback": []}


def test_h28_a_generator_never_becomes_a_stream(daemon, proxy, caplog):
    caplog.set_level("CRITICAL", "fairlead.server")
    with pytest.raises(InternalError):
        invoke(proxy, "numbers")
    assert config.ITER_STREAMING is False and not daemon.streaming_responses

    with pytest.raises(TypeError):
        @remote
        def generate(self):
            yield 1


def test_h29_only_exposed_methods_can_be_reached_and_nothing_else_is_touched(daemon, service):
    assert exposed_names(service) == {
        "annotate", "annotate_and_fail", "bare_error", "bare_exit", "big", "bug", "echo", "exit",
        "fail", "host", "numbers", "relay", "wait",
    }
    with Raw(daemon) as raw:
        for name in (
            "hidden", "touched", "secret", "__init__", "__dict__", "__class__", "__getattr__",
            "__setattr__", "echo.__self__", "_pyroDaemon", "", 5, None,
        ):
            assert refused(raw.call(name, "secret")) == "bad-request"
    assert service.calls == 0


def test_h30_a_batched_call_is_refused_before_any_part_of_it(daemon, service):
    calls = [("echo", (1,), {}), ("echo", (2,), {})]
    with Raw(daemon) as raw:
        payload = msgpack.packb(("service", "<batch>", calls, {}))
        answer = raw.ask(frame(protocol.MSG_INVOKE, payload, flags=protocol.FLAGS_BATCH))
    assert refused(answer) == "bad-request" and service.calls == 0


def test_the_callers_host_is_known_during_a_call_only(proxy):
    assert invoke(proxy, "host") == "127.0.0.1"
    assert caller_host() is None


def test_arguments_that_do_not_fit_are_a_bad_request(proxy):
    with pytest.raises(BadRequest, match="argument"):
        invoke(proxy, "echo", 1, 2)
    with pytest.raises(BadRequest, match="cannot be sent") as caught:
        invoke(proxy, "echo", object)
    assert caught.value.definite


def test_a_protocol_ping_is_answered(daemon):
    with Raw(daemon) as raw:
        assert raw.ask(frame(protocol.MSG_PING, b"ping"))[2] == b"pong"


# --- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_every_error_comes_back_as_itself(proxy, code, serializer):
    proxy._pyroSerializer = serializer
    with pytest.raises(BrokerError) as caught:
        invoke(proxy, "fail", code)
    error = caught.value
    assert type(error) is errors.BY_CODE[code]
    assert str(error) == f"text of {code}"
    assert error.details == {"count": 3, "where": ["a", "b"], "key": ["p", "b'x'"]}


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_a_plain_script_without_fairlead_gets_a_builtin_exception(daemon, serializer, tmp_path):
    script = textwrap.dedent(f"""
        import json, sys
        import Pyro5.api
        assert not any(name.startswith("broker") for name in sys.modules)
        Pyro5.api.config.SERIALIZER = {serializer!r}
        seen = {{}}
        with Pyro5.api.Proxy("PYRO:service@{daemon.locationStr}") as service:
            assert service.echo([1, "a"]) == [1, "a"]
            for code in {sorted(errors.BY_CODE)!r}:
                try:
                    service.fail(code)
                except RuntimeError as error:
                    seen[code] = [str(error), error.code, error.retriable, error.definite,
                                  error.details["count"]]
        print(json.dumps(seen))
    """)
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=20,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, check=True,
    )
    assert json.loads(run.stdout) == {
        code: [f"{code}: text of {code}", code, cls.retriable, cls.definite, 3]
        for code, cls in errors.BY_CODE.items()
    }


def test_other_errors_of_peers_keep_their_class():
    data = {"__class__": "RuntimeError", "__exception__": True, "args": ["plain"]}
    error = serializers.serializers["msgpack"].loads(msgpack.packb(data))
    assert type(error) is RuntimeError and error.args == ("plain",)
    assert pyro_setup.restore(error) is None

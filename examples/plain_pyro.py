"""Fairlead from a script that imports nothing but Pyro5, with Pyro5's default serializer.

Looks a channel up at the name server, publishes, subscribes with a callback object, acknowledges,
and reads the statistics. Start a broker first:

    fairlead up --channel orders
    python examples/plain_pyro.py [CHANNEL] [NAME-SERVER-HOST:PORT]
"""

import queue
import sys
import threading

import Pyro5.api


class Inbox:
    """The callback object: the broker calls ``receive`` with a list of messages, each a dict."""

    def __init__(self):
        self.messages = queue.Queue()

    @Pyro5.api.expose
    def receive(self, messages):
        # Return quickly: this only says that the messages have arrived. Handling comes later.
        for message in messages:
            self.messages.put(message)


def main(channel_name="orders", name_server="127.0.0.1:9090"):
    host, port = name_server.split(":")
    names = Pyro5.api.locate_ns(host, int(port))
    uri = names.lookup("channel." + channel_name)
    print("channel:", uri)

    # A daemon of our own, for the callback object. It must live on the host that subscribes.
    inbox = Inbox()
    daemon = Pyro5.api.Daemon(host="127.0.0.1")
    callback = daemon.register(inbox)
    threading.Thread(target=daemon.requestLoop, daemon=True).start()

    with Pyro5.api.Proxy(uri) as channel:
        joined = channel.subscribe("plain-subscriber", str(callback))
        session = joined["session"]

        # With a first sequence a repeated call is recognised: the second one adds nothing.
        orders = [{"body": {"order": number}} for number in (1, 2, 3)]
        first = channel.next_sequences("plain-publisher", ["customer-42"])[0]
        for attempt in (1, 2):
            answer = channel.publish("plain-publisher", "customer-42", orders, first)
            print(f"publish {attempt}: accepted {answer['accepted']}, "
                  f"duplicates {answer['duplicates']}")

        handled = []
        while len(handled) < 3:
            message = inbox.messages.get(timeout=10)
            print("handling", message["partition"], message["sequence"], message["body"])
            handled.append(message["body"]["order"])
            channel.ack("plain-subscriber", session, message["epoch"], message["position"])

        group = channel.statistics()["subscriptions"]["default"]
        print("acknowledged:", group["acked_total"], "waiting:", group["backup"])
        channel.leave("plain-subscriber", session)

    daemon.shutdown()
    return handled == [1, 2, 3]


if __name__ == "__main__":
    sys.exit(0 if main(*sys.argv[1:]) else 1)

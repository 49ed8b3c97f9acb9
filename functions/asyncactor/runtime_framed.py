"""Runs a handler for the messages that asya-sidecar passes on.

The sidecar connects to the Unix socket asya-runtime.sock in ASYA_SOCKET_DIR, once
for each message. A message is four bytes with its length, the highest first, and
a JSON object with route (actors, and current, the index of this one) and payload.
The answer is a JSON array in the same form: one item for each message that the
handler makes, none for None, or a single item with error. A list that a handler
returns is several messages. Needs Python 3.10 and nothing else.

ASYA_HANDLER names the handler: module.function, or module.Class.method of a
class that is made without arguments. With ASYA_HANDLER_MODE=envelope it gets the
whole message instead of its payload, and gives whole messages back.
"""

import importlib
import inspect
import json
import logging
import os
import socketserver
import struct
import sys
import traceback

# What both scripts share.


def check(message, given=None):
    """Raises ValueError for what is not a message, or leaves the route behind."""
    if not isinstance(message, dict) or "payload" not in message:
        raise ValueError("a message is an object with route and payload")
    route = message.get("route")
    if not isinstance(route, dict) or not isinstance(route.get("actors"), list) or not route["actors"]:
        raise ValueError("route is an object with actors, which names at least one")
    current = route.setdefault("current", 0)
    if not isinstance(current, int) or not 0 <= current <= len(route["actors"]):
        raise ValueError("route.current is an index of route.actors, or their number")
    if given is not None:
        done = given["actors"][: given["current"] + 1]
        if route["actors"][: len(done)] != done:
            raise ValueError("route.actors lacks actors that have worked on the message")


def listed(result):
    if result is None:
        return []
    return list(result) if isinstance(result, (list, tuple)) else [result]


def invoke(handler, message):
    """Gives the messages that a message becomes."""
    if ENVELOPE:
        given = json.loads(json.dumps(message.get("route")))
        made = listed(handler(message))
        if VALIDATE:
            for one in made:
                check(one, given)
        return made
    route = dict(message["route"], current=message["route"]["current"] + 1)
    made = []
    for payload in listed(handler(message["payload"])):
        one = {"payload": payload, "route": route}
        if "headers" in message:
            one["headers"] = message["headers"]
        made.append(one)
    return made


def problem(code, error):
    return [{
        "error": code,
        "details": {
            "message": str(error),
            "type": type(error).__name__,
            "traceback": "".join(traceback.format_exception(error)),
        },
    }]


class Server(socketserver.UnixStreamServer):
    handler = None


class Request(socketserver.StreamRequestHandler):
    def handle(self):
        head = self.rfile.read(4)
        if len(head) < 4:
            return  # a probe, or a sidecar that went away
        size = struct.unpack(">I", head)[0]
        body = self.rfile.read(size)
        if len(body) < size:
            return
        answer = json.dumps(self.work(body)).encode()
        self.wfile.write(struct.pack(">I", len(answer)) + answer)

    def work(self, body):
        try:
            message = json.loads(body)
            if VALIDATE:
                check(message)
        except ValueError as error:
            return problem("msg_parsing_error", error)
        try:
            made = invoke(self.server.handler, message)
            json.dumps(made)
            return made
        except Exception as error:  # the message fails, not the actor
            log.exception("the handler failed")
            return problem("processing_error", error)


def main():
    logging.basicConfig(level=os.environ.get("ASYA_LOG_LEVEL", "INFO").upper(), stream=sys.stderr)
    path = os.environ.get("ASYA_HANDLER")
    if not path or "." not in path:
        sys.exit("ASYA_HANDLER has to name the handler as module.function")
    for stale in (SOCKET, READY):
        if os.path.exists(stale):
            os.remove(stale)
    Server.handler = staticmethod(load(path))
    with Server(SOCKET, Request) as server:
        os.chmod(SOCKET, int(os.environ.get("ASYA_SOCKET_CHMOD") or "0o666", 8))
        with open(READY, "w", encoding="ascii"):
            pass
        log.info("ready for %s", path)
        server.serve_forever()


if __name__ == "__main__":
    main()

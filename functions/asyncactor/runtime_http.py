"""Runs a handler for the messages that asya-sidecar passes on.

The sidecar speaks HTTP over the Unix socket asya-runtime.sock in
ASYA_SOCKET_DIR. POST /invoke carries one message, a JSON object with route and
payload, and gets {"frames": [...]}: one frame for what the handler returns, one
for each value that it yields, and 204 without a body for None. GET /healthz says
that the handler is loaded. Needs Python 3.10 and nothing else.

ASYA_HANDLER names the handler: module.function, or module.Class.method of a
class that is made without arguments. With ASYA_HANDLER_MODE=envelope it gets the
whole message instead of its payload, and gives whole messages back.
"""

import asyncio
import http.server
import importlib
import inspect
import json
import logging
import os
import socketserver
import sys
import traceback

log = logging.getLogger("asya-runtime")
SOCKET_DIR = os.environ.get("ASYA_SOCKET_DIR", "/var/run/asya")
SOCKET = os.path.join(SOCKET_DIR, "asya-runtime.sock")
READY = os.path.join(SOCKET_DIR, "runtime-ready")
ENVELOPE = os.environ.get("ASYA_HANDLER_MODE", "payload") == "envelope"
VALIDATE = os.environ.get("ASYA_ENABLE_VALIDATION", "true") == "true"


def load(path):
    """Imports the handler that a dotted path names."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:end])
        try:
            target = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
                continue  # a class, not a module
            raise
        for name in parts[end:]:
            if inspect.isclass(target):
                target = target()
            target = getattr(target, name)
        if not callable(target):
            raise TypeError(f"ASYA_HANDLER={path} is no function")
        return target
    raise ModuleNotFoundError(f"ASYA_HANDLER={path} is not importable: is it on PYTHONPATH?")


def advance(route):
    """Moves a route on to its next actor."""
    following = list(route.get("next") or [])
    done = list(route.get("prev") or []) + ([route["curr"]] if route.get("curr") else [])
    return {"prev": done, "curr": following[0] if following else "", "next": following[1:]}


def check(message):
    """Raises ValueError for what is no message."""
    if not isinstance(message, dict) or "payload" not in message:
        raise ValueError("a message is an object with route and payload")
    route = message.get("route", {})
    if not isinstance(route, dict) or not isinstance(route.get("next", []), list):
        raise ValueError("route is an object with prev, curr and next")


def values(result):
    """Gives what a handler made, one after the other."""
    if inspect.isawaitable(result):
        result = asyncio.run(wait(result))
    if inspect.isasyncgen(result):
        result = asyncio.run(collect(result))
        yield from result
    elif inspect.isgenerator(result):
        yield from result
    elif result is not None:
        yield result


async def wait(result):
    return await result


async def collect(generator):
    return [value async for value in generator]


def invoke(handler, message):
    """Gives the frames that a message becomes."""
    if ENVELOPE:
        return list(values(handler(message)))
    frames = []
    for payload in values(handler(message["payload"])):
        frame = {"payload": payload, "route": advance(message.get("route", {}))}
        if "headers" in message:
            frame["headers"] = message["headers"]
        frames.append(frame)
    return frames


def problem(code, error):
    kind = type(error)
    return {
        "error": code,
        "details": {
            "message": str(error),
            "type": f"{kind.__module__}.{kind.__qualname__}",
            "mro": [f"{c.__module__}.{c.__qualname__}" for c in kind.__mro__[1:-1]],
            "traceback": "".join(traceback.format_exception(error)),
        },
    }


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    handler = None


class Request(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/healthz":
            self.answer(200, {"status": "ready"})
        else:
            self.answer(404, {"error": "not_found"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/invoke":
            self.answer(404, {"error": "not_found"})
            return
        try:
            message = json.loads(body)
            if VALIDATE:
                check(message)
        except ValueError as error:
            self.answer(400, problem("msg_parsing_error", error))
            return
        try:
            frames = invoke(self.server.handler, message)
            text = json.dumps({"frames": frames}).encode()
        except Exception as error:  # the message fails, not the actor
            log.exception("the handler failed")
            self.answer(500, problem("processing_error", error))
            return
        if frames:
            self.answer(200, text)
        else:
            self.answer(204, b"")

    def answer(self, status, body):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Connection", "close")
        if status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 204:
            self.wfile.write(body)
        self.close_connection = True

    def address_string(self):
        return "sidecar"

    def log_message(self, format, *args):
        log.debug(format, *args)


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
        os.chmod(SOCKET, int(os.environ.get("ASYA_SOCKET_CHMOD", "0o666"), 8))
        with open(READY, "w", encoding="ascii"):
            pass
        log.info("ready for %s", path)
        server.serve_forever()


if __name__ == "__main__":
    main()

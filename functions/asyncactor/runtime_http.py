"""Runs a handler for the messages that asya-sidecar passes on.

The sidecar speaks HTTP over the Unix socket asya-runtime.sock in
ASYA_SOCKET_DIR. POST /invoke carries one message, a JSON object with route and
payload, and gets {"frames": [...]}: one frame for what the handler returns, one
for each value that it yields, and 204 without a body for None. GET /healthz says
that the handler is loaded. Needs Python 3.10 and nothing else.

ASYA_HANDLER names the handler: module.function, or module.Class.method of a
class that is made without arguments. With ASYA_HANDLER_MODE=envelope it gets the
whole message instead of its payload, and gives whole messages back.

ASYA_STATE_PROXY_MOUNTS names stores, which the handler sees as files: entries
name:path:write=mode, separated by semicolons. A connector of each store listens
on state/<name>.sock in ASYA_SOCKET_DIR. What builtins and os do with paths below
the store's is sent there; a path that they cannot send is an error.
"""

import asyncio
import builtins
import errno
import http.client
import http.server
import importlib
import inspect
import io
import json
import logging
import os
import shutil
import socket
import socketserver
import stat
import sys
import tempfile
import traceback

# What both scripts share.


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


class Connection(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path):
        super().__init__("connector")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)


PROBLEMS = {
    400: ValueError,
    403: PermissionError,
    404: FileNotFoundError,
    409: FileExistsError,
    412: FileExistsError,
    503: ConnectionError,
    504: TimeoutError,
}


def finish(connection, path, into=None):
    """Reads an answer, into a file if there is one, and raises what it reports."""
    try:
        answer = connection.getresponse()
        if answer.status >= 400:
            try:
                message = json.loads(answer.read(1 << 20))["message"]
            except (ValueError, KeyError, TypeError):
                message = f"status {answer.status}"
            raise PROBLEMS.get(answer.status, OSError)(f"{path}: {message}")
        if into is None:
            return answer, answer.read()
        shutil.copyfileobj(answer, into)
        return answer, b""
    finally:
        connection.close()


class Store:
    """A store whose keys are the paths of files below its own path."""

    def __init__(self, entry):
        self.name, self.path, options = entry.split(":", 2)
        self.passthrough = "write=passthrough" in options.split(",")
        self.socket = os.path.join(SOCKET_DIR, "state", self.name + ".sock")

    def key(self, path):
        """Gives the key of a path, None where it is not the store's."""
        if path == self.path:
            return ""
        if not path.startswith(self.path + "/"):
            return None
        key = path[len(self.path) + 1 :]
        if not key.isascii() or not key.isprintable() or set(key) & set(" ?#%"):
            raise OSError(errno.EINVAL, "a store has no key of this name", path)
        return key

    def send(self, method, target, body=None, headers=None, into=None):
        connection = Connection(self.socket)
        try:
            connection.request(method, target, body, headers or {})
        except BaseException:
            connection.close()
            raise
        return finish(connection, self.path + target.removeprefix("/keys"), into)

    def download(self, key):
        """Gives a local copy, a file without a name."""
        copy = tempfile.TemporaryFile(buffering=0)
        try:
            self.send("GET", f"/keys/{key}", into=copy)
        except BaseException:
            copy.close()
            raise
        copy.seek(0)
        return copy

    def open(self, path, key, mode, encoding, errors, newline):
        kind = mode.replace("b", "").replace("t", "")
        if key == "" or path.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if kind == "x":
            try:
                self.stat(path, key)
            except FileNotFoundError:
                pass
            else:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if kind == "r":
            file = io.BufferedReader(self.download(key))
        elif kind == "w" and self.passthrough:
            file = io.BufferedWriter(Stream(self, key))
        elif kind in ("w", "x", "a", "r+", "w+", "a+"):
            if self.passthrough and kind != "x":
                raise io.UnsupportedOperation(f"{path}: mode {mode} needs a store that is buffered")
            file = (io.BufferedRandom if "+" in kind else io.BufferedWriter)(Upload(self, key, kind))
        else:
            raise ValueError(f"invalid mode: {mode!r}")
        if "b" in mode:
            return file
        return io.TextIOWrapper(file, encoding, errors, newline)

    def stat(self, path, key):
        size, kind = 0, stat.S_IFDIR | 0o755
        if key:
            try:
                answer, _ = self.send("HEAD", f"/keys/{key}")
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
            size = int(answer.getheader("Content-Length") or 0)
            if answer.getheader("X-Is-File", "true").lower() == "true":
                kind = stat.S_IFREG | 0o644
        return os.stat_result((kind, 0, 0, 1, os.getuid(), os.getgid(), size, 0, 0, 0))

    def listdir(self, key):
        prefix = key + "/" if key else ""
        _, body = self.send("GET", f"/keys/?prefix={prefix}&delimiter=/")
        found = json.loads(body)
        names = found.get("keys", []) + found.get("prefixes", [])
        return [name for name in (n.removeprefix(prefix).rstrip("/") for n in names) if name]

    def attribute(self, key, name, value=None):
        target = f"/meta/{key}?attr={name}"
        if value is None:
            return json.loads(self.send("GET", target)[1])["value"].encode()
        body = json.dumps({"value": value.decode()})
        self.send("PUT", target, body, {"Content-Type": "application/json"})


class Upload(io.RawIOBase):
    """A local file that is sent when it is closed."""

    def __init__(self, store, key, kind):
        self.store, self.key, self.exclusive = store, key, kind == "x"
        try:
            self.file = store.download(key) if kind[0] in "ra" else tempfile.TemporaryFile(buffering=0)
        except FileNotFoundError:
            if kind[0] == "r":
                raise
            self.file = tempfile.TemporaryFile(buffering=0)
        if kind[0] == "a":
            self.file.seek(0, io.SEEK_END)

    def readable(self):
        return True

    def writable(self):
        return True

    def seekable(self):
        return True

    def readinto(self, buffer):
        return self.file.readinto(buffer)

    def write(self, data):
        return self.file.write(data)

    def seek(self, offset, whence=io.SEEK_SET):
        return self.file.seek(offset, whence)

    def truncate(self, size=None):
        return self.file.truncate(size)

    def close(self):
        if self.closed or not hasattr(self, "file"):
            return
        try:
            headers = {"Content-Length": str(self.file.seek(0, io.SEEK_END))}
            if self.exclusive:
                headers["If-None-Match"] = "*"
            self.file.seek(0)
            self.store.send("PUT", f"/keys/{self.key}", self.file, headers)
        finally:
            self.file.close()
            super().close()


class Stream(io.RawIOBase):
    """Sends what is written at once."""

    def __init__(self, store, key):
        self.where = f"{store.path}/{key}"
        self.connection = Connection(store.socket)
        self.connection.putrequest("PUT", f"/keys/{key}")
        self.connection.putheader("Transfer-Encoding", "chunked")
        self.connection.endheaders()

    def writable(self):
        return True

    def write(self, data):
        data = bytes(data)
        if data:
            self.connection.send(b"%x\r\n%b\r\n" % (len(data), data))
        return len(data)

    def close(self):
        if self.closed:
            return
        try:
            self.connection.send(b"0\r\n\r\n")
            finish(self.connection, self.where)
        finally:
            super().close()


def mount(entries):
    """Has builtins and os use the stores."""
    stores = [Store(entry) for entry in entries.split(";") if entry]

    def find(path):
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None, None, None  # a descriptor
        path = os.fsdecode(path)
        if os.path.isabs(path):
            clean = os.path.normpath(path)
            for store in stores:
                key = store.key(clean)
                if key is not None:
                    return store, path, key
        return None, None, None

    def instead(module, name, action):
        """Calls action(store, path, key, ...) for paths in stores."""
        original = getattr(module, name)

        def replaced(path=".", *args, **kwargs):
            store, text, key = find(path)
            if store is None:
                return original(path, *args, **kwargs)
            return action(store, text, key, *args, **kwargs)

        setattr(module, name, replaced)

    def opened(store, path, key, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **_):
        return store.open(path, key, mode, encoding, errors, newline)

    def attribute(store, path, key, name, *args, **_):
        name = os.fsdecode(name)
        if not name.startswith("user.asya."):
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path)
        return store.attribute(key, name.removeprefix("user.asya."), *args[:1])

    def attributes(store, path, key, **_):
        _, body = store.send("GET", f"/meta/{key}")
        return ["user.asya." + name for name in json.loads(body)["attrs"]]

    def nothing(store, path, key, *args, **_):
        """A store has no directories but those in its keys, no times and no modes."""

    def removed(store, path, key, **_):
        store.send("DELETE", f"/keys/{key}")

    instead(builtins, "open", opened)
    io.open = builtins.open  # pathlib's
    for name in ("stat", "lstat"):
        instead(os, name, lambda store, path, key, **_: store.stat(path, key))
    instead(os, "listdir", lambda store, path, key: store.listdir(key))
    for name in ("unlink", "remove"):
        instead(os, name, removed)
    for name in ("mkdir", "makedirs", "rmdir", "utime", "chmod"):
        instead(os, name, nothing)
    for name in ("getxattr", "setxattr"):
        if hasattr(os, name):
            instead(os, name, attribute)
    if hasattr(os, "listxattr"):
        instead(os, "listxattr", attributes)
    for name in ("rename", "replace"):
        original = getattr(os, name)

        def moved(source, target, *args, original=original, **kwargs):
            if find(source)[0] or find(target)[0]:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)
            return original(source, target, *args, **kwargs)

        setattr(os, name, moved)


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
    if os.environ.get("ASYA_STATE_PROXY_MOUNTS"):
        mount(os.environ["ASYA_STATE_PROXY_MOUNTS"])
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

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A receiver of messages that behaves as the path of each request says: http_server.py LOG [CERTIFICATE KEY]

Listens on a free port of 127.0.0.1, prints the port, and ends when its standard input ends.  Each request that came
whole becomes a line of LOG before it is answered: {"at" (milliseconds), "path", "headers" (names in lower case), "body" (one
character for each byte), "connection" (a number)}.  With the path storm/SECONDS it answers at random for so long since it
began, and notes in "answer" what it did: see draw.
"""
import itertools
import json
import os
import random
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.parse

began = time.monotonic()
# What storm does with a message, and how often: the last two accept it, and the last one answers nothing.
storm = {"200": 50, "503": 14, "close": 10, "reset": 4, "slow": 12, "lost": 10}
seen = {}  # how many requests had this idempotency key
lock = threading.Lock()


def draw(seconds, query, body):
    """The answer of storm to a message: a doomed one never succeeds, and a bad one is refused for good; a message that
    is not bound to an order may be refused, too (its body ends with a dash)."""
    if "fair" in query:
        return "200"
    if body.startswith(b"doomed "):
        return "503"
    if body.startswith(b"bad "):
        return "400"
    if time.monotonic() - began > seconds:
        return "200"
    if body.endswith(b" -") and random.random() < 0.05:
        return "400"
    return random.choices(list(storm), list(storm.values()))[0]


class Receiver:
    def __init__(self, connection, number, log):
        self.connection, self.number, self.log, self.pending = connection, number, log, b""

    def until(self, mark):
        while mark not in self.pending:
            more = self.connection.recv(65536)
            if not more:
                return None
            self.pending += more
        part, self.pending = self.pending.split(mark, 1)
        return part

    def exactly(self, length):
        parts, have = [self.pending], len(self.pending)
        while have < length:
            more = self.connection.recv(65536)
            if not more:
                return None
            parts.append(more)
            have += len(more)
        whole = b"".join(parts)
        self.pending = whole[length:]
        return whole[:length]

    def send(self, data):
        self.connection.sendall(data)

    def answer(self, status, headers="", body=b""):
        self.send(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)

    def endless(self, begin, part):
        self.send(begin)
        while True:
            self.send(part)

    def serve(self):
        """Answers one request; False ends the connection."""
        head = self.until(b"\r\n\r\n")
        if head is None:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        _, target, _ = first.split(" ", 2)
        url = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(url.query))
        word, _, rest = url.path[1:].partition("/")
        if word == "early":  # before the body
            self.answer(413, "Connection: close\r\n", b"too large")
            return False
        body = self.exactly(int(headers.get("content-length", "0")))
        if body is None:
            return False
        with lock:
            nth = seen[headers.get("idempotency-key", "")] = seen.get(headers.get("idempotency-key", ""), 0) + 1
            entry = {"at": time.monotonic_ns() // 1000000, "path": url.path, "headers": headers,
                     "body": body.decode("latin-1"), "connection": self.number}
            if word == "storm":
                entry["answer"] = rest = draw(float(rest), url.query, body)
            self.log.write(json.dumps(entry) + "\n")
            self.log.flush()
        return getattr(self, "do_" + word)(rest, query, nth) is not False

    def do_status(self, status, query, _nth):
        extra = "".join(f"{name}: {value}\r\n" for name, value in query.items() if name != "body")
        self.answer(int(status), extra, query.get("body", "").encode())

    def do_then(self, statuses, query, nth):  # the nth request with this key gets the nth status, later ones the last
        each = statuses.split(",")
        self.do_status(each[min(nth, len(each)) - 1], query, nth)

    def do_slow(self, ms, _query, _nth):
        time.sleep(int(ms) / 1000)
        self.answer(200)

    def do_storm(self, answer, query, nth):
        if answer == "slow":
            return self.do_slow(random.randint(20, 400), query, nth)
        if answer == "lost":
            return False
        if answer in ("close", "reset"):
            return getattr(self, "do_" + answer)()
        return self.do_status(answer, {}, nth)

    def do_hang(self, *_):
        while self.connection.recv(65536):
            pass
        return False

    def do_close(self, *_):
        return False

    def do_reset(self, *_):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    def do_garbage(self, *_):
        self.send(os.urandom(256) + b"\0\r\n\r\n\0")
        return False

    def do_old(self, *_):  # HTTP/0.9: a body without a head
        self.send(b"fine\n")
        return False

    def do_short(self, *_):
        self.send(b"HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\nonly this")
        return False

    def do_nul(self, *_):
        self.answer(500, "", b"a\0b\xff\x1b[2J" + b"c" * 5000)

    def do_headers(self, *_):
        self.endless(b"HTTP/1.1 200 X\r\n", b"X-Header: " + b"x" * 1000 + b"\r\n")

    def do_line(self, *_):
        self.endless(b"HTTP/1.1 200 X\r\nX-Header: ", b"x" * 65536)

    def do_continue(self, *_):
        self.endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n")

    def do_endless(self, status, *_):
        self.endless(f"HTTP/1.1 {status} X\r\n\r\n".encode(), b"y" * 65536)

    def do_drip(self, *_):
        self.send(b"HTTP/1.1 200 X\r\nContent-Length: 100000\r\n\r\n")
        while True:
            self.send(b"z")
            time.sleep(0.05)


def serve(connection, number, log, context):
    try:
        if context:
            connection = context.wrap_socket(connection, server_side=True)
        receiver = Receiver(connection, number, log)
        while receiver.serve():
            pass
    except OSError:  # the other side ended
        pass
    finally:
        connection.close()


def main():
    context = None
    if len(sys.argv) > 2:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[2], sys.argv[3])
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listener.getsockname()[1], flush=True)
    log = open(sys.argv[1], "a", encoding="ascii")

    def accept():
        for number in itertools.count(1):
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(connection, number, log, context), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    while os.read(0, 4096):
        pass


main()

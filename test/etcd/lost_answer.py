#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A server that is not what a client expects:  lost_answer.py HOST:PORT|ANSWER

With HOST:PORT it passes every connection on to that etcd, until a request puts a record: etcd gets it, and the client
gets the end of its connection instead of the answer, on a connection that it has used before.  With ANSWER it gives
this text, which is JSON, as the answer to every request.  Prints its port.
"""
import base64
import http.server
import socket
import sys
import threading

MARK = base64.b64encode(b"dibs/record/")[:14]


def pump(source, target, watch):
    """Copies bytes until one side ends."""
    while True:
        try:
            data = source.recv(65536)
            if not data or (watch == "answers" and cut.is_set()):
                break
            if watch == "requests" and b"request_put" in data and MARK in data:
                cut.set()
            target.sendall(data)
        except OSError:
            break
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def forward(host, port):
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection((host, port))
        threading.Thread(target=pump, args=(client, server, "requests"), daemon=True).start()
        threading.Thread(target=pump, args=(server, client, "answers"), daemon=True).start()


class Fixed(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = sys.argv[1].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


cut = threading.Event()
if sys.argv[1][:1] in '{["':
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fixed)
    print(server.server_address[1], flush=True)
    server.serve_forever()
else:
    forward(*sys.argv[1].split(":"))

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A gateway of etcd with troubles of its own:  gateway.py HOST:PORT FOLDER

Passes every request to etcd.  A file in FOLDER makes one of these:

  lose     the first grant is done, and its answer is lost 3.5 s later.  Then the file is named `lost`: etcd's answers to
           questions for a lease's time come 4 s late, and keep-alives are not answered.
  offer    a client is queued at the instant at which all holders are gone.  Then the file is named `offered`: no grant
           finds a leader.
  tokens   tokens of users are longer than a thousand bytes.

Prints its own port.
"""
import base64
import http.client
import http.server
import json
import os
import sys
import time

ETCD, FOLDER = sys.argv[1], sys.argv[2]
LONG = "." + "x" * 1000


def encoded(text):
    return base64.b64encode(text)


PUTS_HOLDER = b'"request_put":{"key":"' + encoded(b"dibs/leas")
PUTS_WAITER = b'"request_put":{"key":"' + encoded(b"dibs/wait")
ALL_HOLDERS = {"key": encoded(b"dibs/lease/").decode(), "range_end": encoded(b"dibs/lease0").decode()}
NO_LEADER = {"error": "etcdserver: no leader", "code": 14, "message": "etcdserver: no leader"}


def is_on(name):
    return os.path.exists(os.path.join(FOLDER, name))


def becomes(name, then):
    """For one request alone."""
    try:
        os.rename(os.path.join(FOLDER, name), os.path.join(FOLDER, then))
        return True
    except OSError:
        return False


class Gateway(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def ask(self, path, body):
        headers = {"Content-Type": "application/json"}
        token = self.headers.get("Authorization")
        if token:
            headers["Authorization"] = token.removesuffix(LONG)
        etcd = http.client.HTTPConnection(ETCD, timeout=30)
        etcd.request("POST", path, body, headers)
        response = etcd.getresponse()
        return response.status, response.read()

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        grants = PUTS_HOLDER in body
        if grants and is_on("offered"):
            self.answer(503, json.dumps(NO_LEADER).encode())
            return
        if self.path == "/v3/lease/keepalive" and is_on("lost"):
            time.sleep(60)
        if PUTS_WAITER in body and not grants and becomes("offer", "offered"):
            self.ask("/v3/kv/deleterange", json.dumps(ALL_HOLDERS))
        status, answer = self.ask(self.path, body)
        if grants and becomes("lose", "lost"):
            time.sleep(3.5)
            self.close_connection = True
            return
        if self.path == "/v3/lease/timetolive" and is_on("lost"):
            time.sleep(4)
        if self.path == "/v3/auth/authenticate" and status == 200 and is_on("tokens"):
            changed = json.loads(answer)
            changed["token"] += LONG
            answer = json.dumps(changed).encode()
        self.answer(status, answer)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", 0), Gateway)
print(server.server_address[1], flush=True)
server.serve_forever()

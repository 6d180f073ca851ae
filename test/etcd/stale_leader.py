#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A gateway of etcd whose keep-alives are answered by a member of an earlier term:  stale_leader.py HOST:PORT FILE

Passes every request to etcd.  While FILE exists, it does not pass keep-alives: it answers them as a leader does that was
stopped, and does not know yet that another one leads.  Prints its own port.
"""
import http.client
import http.server
import json
import os
import sys

ETCD, FILE = sys.argv[1], sys.argv[2]


class Gateway(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def stale(self, body):
        """The keep-alives of the body, answered in term 1."""
        decoder, at, lines = json.JSONDecoder(), 0, b""
        text = body.decode()
        while at < len(text):
            one, at = decoder.raw_decode(text, at)
            answer = {"header": {"revision": "1", "raft_term": "1"}, "ID": one["ID"], "TTL": "4"}
            lines += json.dumps({"result": answer}).encode() + b"\n"
        return lines

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/v3/lease/keepalive" and os.path.exists(FILE):
            status, answer = 200, self.stale(body)
        else:
            etcd = http.client.HTTPConnection(ETCD, timeout=30)
            etcd.request("POST", self.path, body, {"Content-Type": "application/json"})
            response = etcd.getresponse()
            status, answer = response.status, response.read()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", 0), Gateway)
print(server.server_address[1], flush=True)
server.serve_forever()

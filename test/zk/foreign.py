#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Another program that writes into the nodes of dibs:  foreign.py HOST:PORT lease NAME DATA | record KEY DATA

`lease` creates a lasting node among those of the holders of NAME, which must have been held before; `record` sets the
data of the node of KEY.  It speaks ZooKeeper's protocol itself.
"""
import socket
import struct
import sys

CREATE, SET_DATA, GET_CHILDREN = 1, 5, 8


def text(value):
    data = value.encode()
    return struct.pack(">i", len(data)) + data


class Connection:
    def __init__(self, place):
        host, port = place.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), 30)
        self.send(struct.pack(">iqiq", 0, 0, 10000, 0) + text("\0" * 16))
        self.receive()

    def send(self, body):
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def receive(self):
        def exactly(count):
            data = b""
            while len(data) < count:
                more = self.socket.recv(count - len(data))
                if not more:
                    sys.exit("foreign.py: the server closed the connection")
                data += more
            return data

        return exactly(struct.unpack(">i", exactly(4))[0])

    def request(self, kind, body):
        """The error, and what follows it."""
        self.send(struct.pack(">ii", 1, kind) + body)
        answer = self.receive()
        return struct.unpack(">i", answer[12:16])[0], answer[16:]

    def children(self, path):
        error, body = self.request(GET_CHILDREN, text(path) + b"\0")
        names, at = [], 4
        for _ in range(struct.unpack(">i", body[:4])[0] if error == 0 else 0):
            length = struct.unpack(">i", body[at:at + 4])[0]
            names.append(body[at + 4:at + 4 + length].decode())
            at += 4 + length
        return names

    def find(self, folder, name):
        root = "/dibs/" + self.children("/dibs")[0] + "/" + folder
        for bucket in self.children(root):
            if name in self.children(f"{root}/{bucket}"):
                return f"{root}/{bucket}/{name}"
        sys.exit(f"foreign.py: there is no node {name}")


connection = Connection(sys.argv[1])
if sys.argv[2] == "lease":
    node = connection.find("l", sys.argv[3]) + "/0123456789abcdef-x-0000000000"
    everyone = struct.pack(">ii", 1, 31) + text("world") + text("anyone")
    failed, _ = connection.request(CREATE, text(node) + text(sys.argv[4]) + everyone + struct.pack(">i", 0))
else:
    node = connection.find("r", sys.argv[3])
    failed, _ = connection.request(SET_DATA, text(node) + text(sys.argv[4]) + struct.pack(">i", -1))
sys.exit(f"foreign.py: error {failed}" if failed else 0)

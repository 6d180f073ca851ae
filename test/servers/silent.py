#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A server that accepts connections, sends some bytes, and then nothing for ever:  silent.py none|part|much

`part` sends the beginning of MariaDB's greeting.  Prints its port.
"""
import socket
import sys
import threading

SENDS = {"none": b"", "part": b"\x4a\x00\x00", "much": b"x" * 100000}


def greet(client):
    try:
        client.sendall(SENDS[sys.argv[1]])
    except OSError:
        pass


listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
clients = []
while True:
    clients.append(listener.accept()[0])
    threading.Thread(target=greet, args=(clients[-1],), daemon=True).start()

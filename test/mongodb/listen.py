#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Servers that are none, for tests.

listen.py heard FILE: prints its port; what the first client sends is in FILE, and the connection is closed.
listen.py passed PORT [OWN]: prints its port; passes all bytes to and from 127.0.0.1:PORT.
"""
import os
import socket
import sys
import threading


def hear(listener, path):
    while True:
        client, _ = listener.accept()
        with client:
            client.settimeout(10)
            try:
                heard = client.recv(65536)
            except OSError:
                heard = b""
        if heard and not os.path.exists(path):
            with open(path + ".new", "wb") as file:
                file.write(heard)
            os.rename(path + ".new", path)


def copy(source, to):
    try:
        while data := source.recv(65536):
            to.sendall(data)
    except OSError:
        pass
    for one in (source, to):
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def hand_on(listener, port):
    while True:
        client, _ = listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            client.close()
            continue
        threading.Thread(target=copy, args=(client, server), daemon=True).start()
        threading.Thread(target=copy, args=(server, client), daemon=True).start()


def main():
    own = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    listener = socket.create_server(("127.0.0.1", own))
    print(listener.getsockname()[1], flush=True)
    if sys.argv[1] == "heard":
        hear(listener, sys.argv[2])
    hand_on(listener, int(sys.argv[2]))


main()

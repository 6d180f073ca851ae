#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A name server, for tests: dns.py ADDRESS ZONE answers at ADDRESS:53, by UDP and TCP.

ZONE is a file with JSON, read again for each question: {"name": {"SRV": [["host", port], ...], "TXT": [["part", ...]]}}.
A name may be "silent" (no answer), "fails" (SERVFAIL) or "damaged" (the rest of the answer is missing) instead.  A name
that the file does not have does not exist.  An answer of more than 512 bytes is truncated by UDP.
"""
import json
import socket
import struct
import sys
import threading

TYPES = {"SRV": 33, "TXT": 16}


def packed_name(name):
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


def record_data(kind, value):
    if kind == "SRV":
        return struct.pack(">HHH", 0, 0, value[1]) + packed_name(value[0])
    return b"".join(bytes([len(part)]) + part.encode() for part in value)


def answer_to(question, zone, udp):
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode())
        at += 1 + question[at]
    kind = struct.unpack(">H", question[at + 1 : at + 3])[0]
    asked = question[12 : at + 5]
    with open(zone, encoding="utf-8") as file:
        entry = json.load(file).get(".".join(labels).lower())
    if entry == "silent":
        return None
    code = 2 if entry == "fails" else 3 if entry is None else 0
    rows = []
    if isinstance(entry, dict):
        for name, values in entry.items():
            if TYPES[name] == kind:
                rows += [record_data(name, value) for value in values]
    if entry == "damaged":
        return question[:2] + struct.pack(">HHHHH", 0x8580, 1, 7, 0, 0) + asked + b"\xc0"
    body = b"".join(struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(row)) + row for row in rows)
    flags, count = 0x8580 | code, len(rows)
    if udp and len(asked) + len(body) + 12 > 512:
        flags, count, body = flags | 0x0200, 0, b""
    return question[:2] + struct.pack(">HHHHH", flags, 1, count, 0, 0) + asked + body


def serve_tcp(listener, zone):
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(5)
            try:
                size = struct.unpack(">H", connection.recv(2, socket.MSG_WAITALL))[0]
                got = answer_to(connection.recv(size, socket.MSG_WAITALL), zone, False)
                if got:
                    connection.sendall(struct.pack(">H", len(got)) + got)
            except (OSError, struct.error):
                pass


def main():
    address, zone = sys.argv[1:3]
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((address, 53))
    tcp = socket.create_server((address, 53))
    threading.Thread(target=serve_tcp, args=(tcp, zone), daemon=True).start()
    print("ready", flush=True)
    while True:
        question, client = udp.recvfrom(4096)
        got = answer_to(question, zone, True)
        if got:
            udp.sendto(got, client)


main()

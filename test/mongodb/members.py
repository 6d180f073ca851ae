# SPDX-License-Identifier: MIT
"""Three members of a replica set for tests, in front of one server that is none.

Each member listens on a port of its own, and passes the commands of its clients to the server; `hello` says that it is
the primary or a secondary, and of which term.  A test elects another primary whenever it wants to, and arms faults: what
happens to the next command that it chooses.

The server sees neither the read concern nor the number of a retryable write (txnNumber), which it does not know.  So the
members check them, and `w: majority, j: true` of each write: `violations` has what a client sent without.  With
`remembers` a member answers the repeat of a retryable write as a replica set does: from its memory, once for the whole
set.  Without it, the write is done again.

What is confirmed here is in the one server, so nothing that was confirmed is ever rolled back, and a majority read sees
every write at once.
"""
import collections
import contextlib
import socket
import struct
import threading
import time

NOT_PRIMARY, NOT_PRIMARY_READ, STEPPED_DOWN, INTERRUPTED, NOT_CONFIRMED = 10107, 13435, 189, 11602, 64
WRITES = {"insert", "update", "delete", "findAndModify", "createIndexes", "create"}
READS = {"find", "aggregate", "count", "distinct"}
ALWAYS = {"hello", "isMaster", "ismaster", "ping", "endSessions", "buildInfo"}
RETRYABLE = ["RetryableWriteError"]

# ---- BSON: the fields of one document, and their values as bytes ----

LENGTHS = {1: 8, 6: 0, 7: 12, 8: 1, 9: 8, 10: 0, 16: 4, 17: 8, 18: 8, 19: 16}


def length_of(kind, data, at):
    if kind in LENGTHS:
        return LENGTHS[kind]
    size = struct.unpack_from("<i", data, at)[0]
    return {2: size + 4, 3: size, 4: size, 5: size + 5}[kind]


def fields(data):
    """{name: (type, bytes)} of a document, in its order."""
    found, at = {}, 4
    while data[at]:
        kind, end = data[at], data.index(0, at + 1)
        name, start = data[at + 1:end].decode(), end + 1
        at = start + length_of(kind, data, start)
        found[name] = (kind, data[start:at])
    return found


def document(found):
    body = b"".join(bytes([kind]) + name.encode() + b"\0" + data for name, (kind, data) in found.items())
    return struct.pack("<i", len(body) + 5) + body + b"\0"


def value(of):
    """As BSON of a Python value: (type, bytes)."""
    if isinstance(of, bool):
        return 8, bytes([of])
    if isinstance(of, int):
        return 16, struct.pack("<i", of)
    if isinstance(of, str):
        return 2, struct.pack("<i", len(of.encode()) + 1) + of.encode() + b"\0"
    if isinstance(of, bytes):
        return 7, of
    if isinstance(of, list):
        of, kind = {str(i): one for i, one in enumerate(of)}, 4
    else:
        kind = 3
    return kind, document({name: value(one) for name, one in of.items()})


def text(found, name):
    kind, data = found.get(name, (0, b""))
    return data[4:-1].decode(errors="replace") if kind == 2 else None


def inner(found, name):
    kind, data = found.get(name, (0, b""))
    return fields(data) if kind in (3, 4) else {}


def refusal(code, message, labels=()):
    found = {"ok": value(0), "code": value(code), "errmsg": value(message), "codeName": value(message)}
    return document(found | ({"errorLabels": value(list(labels))} if labels else {}))


# ---- Messages ----

OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013


def receive(sock):
    """(request's id, opcode, the rest), or None: the connection has ended."""
    head = b""
    while len(head) < 16:
        more = sock.recv(16 - len(head))
        if not more:
            return None
        head += more
    size, number, _, opcode = struct.unpack("<iiii", head)
    body = bytearray()
    while len(body) < size - 16:
        more = sock.recv(size - 16 - len(body))
        if not more:
            return None
        body += more
    return number, opcode, bytes(body)


def send(sock, opcode, number, answers, body):
    sock.sendall(struct.pack("<iiii", 16 + len(body), number, answers, opcode) + body)


def command_in(opcode, body):
    """(what precedes the command, the command, what follows it)"""
    at = 5 if opcode == OP_MSG else body.index(0, 4) + 9
    size = struct.unpack_from("<i", body, at)[0]
    return body[:at], body[at:at + size], body[at + size:]


def send_answer(sock, opcode, answers, answer):
    if opcode == OP_QUERY:
        send(sock, OP_REPLY, 0, answers, struct.pack("<iqii", 8, 0, 0, 1) + answer)
    else:
        send(sock, OP_MSG, 0, answers, struct.pack("<ib", 0, 0) + answer)


class Fault:
    """What happens to the `nth` command with this name on a collection whose name ends like this.

    how    refused:   nothing is done; the answer is `code`
           done:      it is done; the answer is `code`
           lost:      it is done; the connection ends instead of an answer
           cut:       nothing is done; the same
           unconfirmed:  it is done, but the answer has a writeConcernError with `code`
           reverted:  nothing is done, and the answer is that of `unconfirmed`: it was done, and another primary has
                      been elected that does not have it
           element:   nothing is done, and the answer has `code` as the error of its one element
    elect  the member that is elected: before the command if it is refused, else after it; None: nothing changes;
           -1: there is no primary then
    """

    def __init__(self, command, collection, how, code=0, labels=(), elect=None, nth=1):
        self.command, self.collection, self.how, self.code = command, collection, how, code
        self.labels, self.elect, self.left = labels, elect, nth
        self.happened = threading.Event()

    def fits(self, name, collection):
        return name == self.command and collection.endswith(self.collection)


class Gone(Exception):
    """The connection ends."""


class Member:
    def __init__(self, members, number):
        self.members, self.number = members, number
        self.running = threading.Event()
        self.running.set()
        self.down = False
        self.claims = 0  # a term: it still believes to be its primary, although another one was elected
        self.older = {}  # answers to `find`, by the end of the collection's name: its commit point is behind, until a write
        self.clients = set()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def start(self):
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.down:
                client.close()
                continue
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.clients.add(client)
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        server = socket.create_connection(self.members.server)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError, Gone), client, server:
            while True:
                message = receive(client)
                self.running.wait()
                if message is None or self.down:
                    break
                number, opcode, body = message
                answer = self.answer(server, opcode, body)
                self.running.wait()
                send_answer(client, opcode, number, answer)
        self.clients.discard(client)

    def cut(self):
        for client in list(self.clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    # ---- One command ----

    def answer(self, server, opcode, body):
        head, raw, tail = command_in(opcode, body)
        found = fields(raw)
        name = next(iter(found))
        if name not in ALWAYS:
            self.members.check(name, found)
            fault = self.members.fault_of(name, text(found, name) or "")
            if fault:
                return self.fail(fault, lambda: self.do(server, opcode, head, found, tail))
            level = text(inner(found, "readConcern"), "level")
            if self.is_stale() and (name in WRITES or level == "linearizable"):
                self.wait_for_the_truth()
                return refusal(INTERRUPTED, "InterruptedDueToReplStateChange")
            if not self.is_primary():
                code = NOT_PRIMARY if name in WRITES else NOT_PRIMARY_READ
                return refusal(code, "NotWritablePrimary")
            older = self.shows_older(name, text(found, name) or "")
            if older:
                return older
        return self.do(server, opcode, head, found, tail)

    def shows_older(self, name, collection):
        """A member that was elected a moment ago may not know yet that a majority has what it has.  When its own first
        write is confirmed it does.  (Signs of life come at any time.)"""
        if name in WRITES and not collection.endswith("_sessions"):
            self.older.clear()
        return next((answer for end, answer in self.older.items() if name == "find" and collection.endswith(end)), None)

    def do(self, server, opcode, head, found, tail):
        """Passes it on, unless it is the repeat of a write that was done."""
        write = (found.get("lsid"), found.get("txnNumber")) if "txnNumber" in found else None
        name = next(iter(found))
        if write and self.members.remembers:
            done = self.members.memory.get(write)
            if done:
                return done
        for field in ("txnNumber", "lsid", "$clusterTime", "readConcern"):
            found.pop(field, None)
        self.members.done[name, text(found, name)] += 1
        send(server, opcode, 1, 0, head + document(found) + tail)
        message = receive(server)
        if message is None:
            raise Gone
        answer = message[2][5:] if message[1] == OP_MSG else message[2][20:]
        if name in ALWAYS and name != "ping":
            answer = self.introduce(answer)
        elif write:
            self.members.memory[write] = answer
        return answer

    def fail(self, fault, do):
        members = self.members
        if fault.how in ("refused", "cut"):
            members.elect(fault.elect)
        answer = do() if fault.how in ("done", "lost", "unconfirmed") else refusal(fault.code, "failed", fault.labels)
        if fault.how == "element":
            answer = document({name: value(of) for name, of in
                               {"n": 0, "writeErrors": [{"index": 0, "code": fault.code, "errmsg": "failed"}], "ok": 1}.items()})
        if fault.how == "done":
            answer = refusal(fault.code, "failed", fault.labels)
        elif fault.how in ("unconfirmed", "reverted"):
            answer = self.unconfirmed(fault, answer)
        if fault.how not in ("refused", "cut"):
            members.elect(fault.elect)
        fault.happened.set()
        if fault.how in ("lost", "cut"):
            raise Gone
        return answer

    @staticmethod
    def unconfirmed(fault, answer):
        found = fields(answer) if fault.how == "unconfirmed" else {"n": value(1), "nModified": value(1), "ok": value(1)}
        found["writeConcernError"] = value({"code": fault.code, "errmsg": "waiting for replication timed out"})
        if fault.labels:
            found["errorLabels"] = value(list(fault.labels))
        return document(found)

    def is_primary(self):
        return self.members.primary == self.number or self.claims > 0

    def is_stale(self):
        return self.claims > 0 and self.members.primary != self.number

    def wait_for_the_truth(self):
        """No majority confirms what a stale primary writes, or that it is the primary; in the end it steps down."""
        while self.is_stale() and not self.down:
            time.sleep(0.02)

    def introduce(self, answer):
        """An answer to hello, as a member of a replica set gives it."""
        members, found = self.members, fields(answer)
        if "localTime" not in found:
            return answer
        for field in ("topologyVersion", "msg"):
            found.pop(field, None)
        primary = self.is_primary()
        found["ismaster" if "ismaster" in found else "isWritablePrimary"] = value(primary)
        found |= {"secondary": value(not primary), "setName": value("rs0"), "setVersion": value(1),
                  "hosts": value([one.address for one in members.all]), "me": value(self.address),
                  "logicalSessionTimeoutMinutes": value(30)}
        if primary:
            term = self.claims or members.term
            found |= {"electionId": value(b"\x7f\xff\xff\xff" + struct.pack(">Q", term)), "primary": value(self.address)}
        elif members.primary is not None:
            found["primary"] = value(members.all[members.primary].address)
        return document(found)


class Members:
    """A replica set of three; the first one is its primary, in term 1."""

    def __init__(self, server, remembers=True):
        host, port = server.rsplit(":", 1)
        self.server, self.remembers = (host, int(port)), remembers
        self.lock = threading.Lock()
        self.term, self.primary = 1, 0
        self.memory, self.faults, self.violations, self.seen = {}, [], [], {}
        self.done = collections.Counter()  # commands that were passed on, by name and collection
        self.all = [Member(self, number) for number in range(3)]
        for member in self.all:
            member.start()

    def uri(self, database, only=None):
        hosts = [self.all[only]] if only is not None else self.all
        return f"mongodb://{','.join(one.address for one in hosts)}/{database}?replicaSet=rs0"

    def elect(self, number):
        """None: nothing; -1: nobody."""
        if number is None:
            return
        with self.lock:
            self.primary = number if number >= 0 else None
            self.term += number >= 0

    def elect_next(self):
        self.elect(((self.primary or 0) + 1) % 3)

    def arm(self, *args, **named):
        fault = Fault(*args, **named)
        with self.lock:
            self.faults.append(fault)
        return fault

    def fault_of(self, name, collection):
        """The first one that is armed for this command; each one happens once."""
        with self.lock:
            for fault in self.faults:
                if not fault.fits(name, collection):
                    continue
                fault.left -= 1
                if fault.left == 0:
                    self.faults.remove(fault)
                    return fault
                return None
        return None

    def check(self, name, found):
        concern, level = inner(found, "writeConcern"), text(inner(found, "readConcern"), "level")
        sent = ""
        if name in WRITES:
            sent = f"w: {text(concern, 'w')}, j: {concern.get('j', (0, b''))[1] == bytes([1])}"
            fine = sent == "w: majority, j: True"
        else:
            sent = f"readConcern: {level}"
            fine = name not in READS or level in ("majority", "linearizable")
        with self.lock:
            key = (name, sent)
            self.seen[key] = self.seen.get(key, 0) + 1
            if not fine:
                self.violations.append(f"{name} of {text(found, name)}: {sent}")


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False

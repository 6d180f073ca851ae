# SPDX-License-Identifier: MIT
"""For the tests of elections: a set of members (members.py) with a database of its own, and calls of dibs through it."""
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading

from members import OP_MSG, Members, document, fields, inner, receive, send, value

DIBS, URI = sys.argv[1], sys.argv[2]
SERVER = URI.split("//", 1)[1].split("/", 1)[0]
DONE, FULL, LOST, UNAVAILABLE, UNKNOWN = 0, 120, 122, 123, 124


def call(store, *args, content=None, seconds=90):
    """(exit code, what it prints, errors)"""
    done = subprocess.run([DIBS, *args], env=os.environ | {"DIBS_STORE": store}, input=content, capture_output=True,
                          text=True, timeout=seconds, check=False)
    return done.returncode, done.stdout, done.stderr


DATABASE = f"elect_{os.urandom(4).hex()}"
DIRECT = f"mongodb://{SERVER}/{DATABASE}"  # reaches the server without a member


def make_collections():
    """A server over PostgreSQL needs seconds for a new collection if the machine is busy: before the tests."""
    for args in (("record", "put", "warm", "--force"), ("stock", "set", "warm", "1"),
                 ("stock", "take", "warm", "1", "--wait", "60s"), ("counter", "add", "warm", "--wait", "60s"),
                 ("once", "--wait", "60s", "warm", "--", "true"), ("run", "--wait", "60s", "warm", "--", "true"),
                 ("task", "add", "warm", "text")):
        for _ in range(20):
            code, _, errors = call(DIRECT, *args, content="")
            if code == DONE:
                break
        else:
            raise AssertionError(f"dibs {' '.join(args)}: {errors}")


class Bed:
    """A set of its own, and names of its own, in the database of all."""

    count = 0
    lock = threading.Lock()

    def __init__(self, remembers=True):
        with Bed.lock:
            Bed.count += 1
            self.number = Bed.count
        self.members = Members(SERVER, remembers)
        self.uri = self.members.uri(DATABASE)
        self.direct = DIRECT
        self.folder = tempfile.TemporaryDirectory(prefix="dibs-test-election.")

    def name(self, word):
        return f"{word}-{self.number}"

    def dibs(self, *args, **named):
        return call(self.uri, *args, **named)

    def truth(self, *args, **named):
        code, out, errors = call(self.direct, *args, **named)
        if code not in (0, 117):
            raise AssertionError(f"dibs {' '.join(args)}: {code} {errors}")
        return out

    def lines(self):
        """How often a command has run."""
        path = os.path.join(self.folder.name, "ran")
        return open(path).read().count("\n") if os.path.exists(path) else 0

    def command(self):
        return ("--", "sh", "-c", 'echo "$DIBS_FENCE" >>"$1"', "sh", os.path.join(self.folder.name, "ran"))


def ask(bed, **command):
    """The answer of the server itself."""
    with socket.create_connection(bed.members.server) as server:
        sent = document({name: value(of) for name, of in (command | {"$db": DATABASE}).items()})
        send(server, OP_MSG, 1, 0, struct.pack("<ib", 0, 0) + sent)
        return receive(server)[2][5:]


def found_now(bed, collection, query):
    """What a `find` answers now, for a member that will show it later; and how many documents these are."""
    answer = ask(bed, find=collection, filter=query)
    return answer, len(inner(inner(fields(answer), "cursor"), "firstBatch"))


def insert(bed, collection, documents):
    """Adds documents to a collection, at the server itself."""
    answer = fields(ask(bed, insert=collection, documents=documents))
    if answer["n"] != value(len(documents)):
        raise AssertionError(f"{collection}: the documents were not added: {answer}")

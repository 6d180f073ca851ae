# SPDX-License-Identifier: MIT
"""A process with a lease, for the tests: holder.py URI NAME TTL KEY

Prints "held FENCE".  Then it does what each line of standard input says, and answers with a line:
  look      alive or not, how often on_lost was called, and with what status and text
  put       the status of a late write to the record KEY under the lease
  give      detaches the lease and prints its id
  release   the status of the release
"""
import sys
import threading

import dibs

uri, name, ttl, key = sys.argv[1:]
lost = []
called = threading.Event()


def on_lost(lease, error):
    lost.append(error)
    called.set()


def say(*words):
    print(*words, flush=True)


def outcome(call, *arguments, **options):
    try:
        call(*arguments, **options)
        return "OK"
    except dibs.Error as error:
        return error


store = dibs.Store(uri, owner="holder")
lease = store.acquire(name, ttl=float(ttl), wait=10, on_lost=on_lost)
say("held", lease.fence)
for line in sys.stdin:
    match line.strip():
        case "look":
            if not lease.alive:
                called.wait(10)
            say("alive" if lease.alive else "dead", len(lost), *lost)
        case "put":
            say(outcome(store.put, key, b"late", lease=lease))
        case "give":
            say(lease.detach())
        case "release":
            say(outcome(lease.release))
lease.free()
store.close()

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A load while primaries are elected, step down, fall silent and die:  election_storm.py URI SECONDS PROGRAM ARG...

PROGRAM runs with the URI of the set in the place of {set}; its status is that of the test.  With DIBS_EVENTS=NAME,NAME only
these events happen.
"""
import collections
import os
import random
import subprocess
import sys
import time

from members import INTERRUPTED, NOT_CONFIRMED, NOT_PRIMARY, RETRYABLE, STEPPED_DOWN, Members, wait_until

SERVER = sys.argv[1].split("//", 1)[1].split("/", 1)[0]
SECONDS, PROGRAM = int(sys.argv[2]), sys.argv[3:]
WRITES = [("update", "_leases"), ("insert", "_leases"), ("update", "_stocks"), ("insert", "_claims"), ("update", "_sources"),
          ("update", "_counters"), ("update", "_records"), ("update", "_sessions")]
members = Members(SERVER)
counts = collections.Counter()


def another():
    return random.choice([number for number in range(3) if number != members.primary])


def in_the_middle(how, code=0, labels=()):
    """The next writes of several kinds meet an election, or a majority that does not confirm them."""
    for command, collection in random.sample(WRITES, 3):
        members.arm(command, collection, how=how, code=code, labels=labels, nth=random.randint(1, 5),
                    elect=None if code == NOT_CONFIRMED else another())
    time.sleep(1)
    members.faults.clear()


def quiet_election():
    members.elect(another())
    time.sleep(1)


def nobody():
    members.elect(-1)
    time.sleep(random.uniform(0.5, 3.5))
    members.elect(random.randrange(3))
    time.sleep(1)


def paused():
    """The primary falls silent; another one is elected, and the old one wakes up and believes to be it still."""
    old = members.all[members.primary]
    old.running.clear()
    time.sleep(0.5)
    old.claims = members.term
    members.elect(another())
    time.sleep(2)
    old.running.set()
    time.sleep(0.5)
    old.claims = 0


def dead():
    old = members.all[members.primary]
    old.down = True
    old.cut()
    time.sleep(random.uniform(0.1, 1))
    members.elect(another())
    time.sleep(1)
    old.down = False


EVENTS = {
    "refused": lambda: in_the_middle("refused", NOT_PRIMARY),
    "stepped down": lambda: in_the_middle("done", STEPPED_DOWN),
    "interrupted": lambda: in_the_middle("done", INTERRUPTED, RETRYABLE),
    "lost": lambda: in_the_middle("lost"),
    "cut": lambda: in_the_middle("cut"),
    "unconfirmed": lambda: in_the_middle("unconfirmed", NOT_CONFIRMED),
    "rolled back": lambda: in_the_middle("reverted", STEPPED_DOWN),
    "elected": quiet_election, "nobody": nobody, "paused": paused, "dead": dead,
}

if "DIBS_EVENTS" in os.environ:
    EVENTS = {name: EVENTS[name] for name in os.environ["DIBS_EVENTS"].split(",")}
load = subprocess.Popen([arg.replace("{set}", members.uri(f"storm_{os.urandom(4).hex()}")) for arg in PROGRAM])
wait_until(lambda: load.poll() is not None or any(name == "update" for name, _ in list(members.seen)))
end = time.monotonic() + SECONDS
order = []
while time.monotonic() < end and load.poll() is None:
    if not order:
        order = random.sample(sorted(EVENTS), len(EVENTS))
    event = order.pop()
    EVENTS[event]()
    counts[event] += 1
status = load.wait()
print("election_storm: " + ", ".join(f"{count} {event}" for event, count in sorted(counts.items())) +
      f"; the last term is {members.term}")
for why in members.violations[:5]:
    print(f"election_storm: without its concern: {why}")
if len(counts) < min(3, len(EVENTS)):
    print("election_storm: hardly anything happened to the members")
sys.exit(status or bool(members.violations) or len(counts) < min(3, len(EVENTS)))

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Elections in the middle of a write, through members that only say they are a replica set:  election_test.py DIBS URI

One fault happens to one command of one call of dibs.  Then the answer of the call must be true: after 0 its effect is
there once; after 123 (nothing was done) it is not there; after 124 it is there or not, and its repeat leaves it there
once.  The set does not remember retryable writes: if the client's library repeats one, it is done again.
"""
import concurrent.futures
import sys
import unittest

import tap
from election_bed import DONE, UNAVAILABLE, UNKNOWN, Bed, make_collections
from members import INTERRUPTED, NOT_CONFIRMED, NOT_PRIMARY, RETRYABLE, STEPPED_DOWN

MISSED = "the fault did not happen"
TRIES = 3  # sets in which something happens at the same time


# ---- Calls, each with the command of the protocol at which the fault happens ----


class Call:
    """`act` does one thing; `count` says how often it was done.  `safe`: it may be repeated after 124."""

    def __init__(self, name, command, collection, act, count, prepare=None, safe=True, nth=1):
        self.name, self.command, self.collection, self.nth = name, command, collection, nth
        self.act, self.count, self.prepare, self.safe = act, count, prepare or (lambda bed: None), safe


def used(bed):
    for line in bed.truth("stock", "show", bed.name("seats")).splitlines():
        if line.startswith("used"):
            return int(line.split()[1])
    return 0


def put(bed, *guard):
    return bed.dibs("record", "put", bed.name("key"), *guard, content="new")


def create(bed):
    code, out, errors = put(bed, "--create")
    return (DONE, out, errors) if code == 115 and bed.tried else (code, out, errors)


def replace(bed):
    code, out, errors = put(bed, "--if", bed.version)
    return (DONE, out, errors) if code == 115 and bed.tried else (code, out, errors)


def old_record(bed):
    bed.version = bed.truth("record", "put", bed.name("key"), "--create", content="old").strip()


def with_stock(bed):
    bed.truth("stock", "set", bed.name("seats"), "10")


def with_claim(bed):
    with_stock(bed)
    bed.truth("stock", "take", bed.name("seats"), "3", "--claim", bed.name("one"))


def take(bed):
    return bed.dibs("stock", "take", bed.name("seats"), "3", "--claim", bed.name("one"))


def give(bed):
    return bed.dibs("stock", "give", bed.name("seats"), bed.name("one"))


def add(bed):
    return bed.dibs("counter", "add", bed.name("likes"))


def likes(bed):
    return int(bed.truth("counter", "get", bed.name("likes")) or 0)


def once(bed):
    return bed.dibs("once", "--wait", "30s", "--ttl", "10s", bed.name("key"), *bed.command())


def run(bed):
    return bed.dibs("run", "--wait", "30s", "--ttl", "10s", "--no-history", bed.name("name"), *bed.command())


def add_task(bed):
    return bed.dibs("task", "add", bed.name("mail"), "text", "--unique", "once")


def tasks(bed):
    return bed.truth("task", "ls", "--kind", bed.name("mail")).count(bed.name("mail"))


def is_new(bed):
    return int(bed.truth("record", "get", bed.name("key")) == "new")


def taken(bed):
    return used(bed) / 3


def given(bed):
    return 1 - used(bed) / 3


CALLS = [
    Call("a record is created", "insert", "_records", create, is_new),
    Call("a record is replaced", "update", "_records", replace, is_new, old_record),
    Call("a claim is bound", "insert", "_claims", take, taken, with_stock),
    Call("units are taken", "update", "_stocks", take, taken, with_stock),
    Call("units are given back", "update", "_stocks", give, given, with_claim),
    Call("a batch of counters begins", "insert", "_sources", add, likes, safe=False),
    Call("a counter is made", "insert", "_counters", add, likes, safe=False),
    Call("a counter is changed", "update", "_counters", add, lambda bed: likes(bed) - 1,
         lambda bed: bed.truth("counter", "add", bed.name("likes")), safe=False),
    Call("a batch of counters ends", "update", "_sources", add, likes, safe=False),
    Call("a once key begins", "insert", "_once", once, Bed.lines),
    Call("a lease is acquired", "insert", "_leases", run, Bed.lines),
    Call("a task is added", "insert", "_tasks", add_task, tasks),
    Call("a lease is released", "update", "_leases", run, Bed.lines, safe=False),
]


def try_call(one, faults):
    """Why it is wrong, or None.  The other members of the set can be elected during the call."""
    bed = Bed(remembers=False)
    bed.tried = False
    one.prepare(bed)
    armed = [bed.members.arm(one.command, one.collection, nth=one.nth if i == 0 else 1, **fault)
             for i, fault in enumerate(faults)]
    code, _, errors = one.act(bed)
    what = f"{one.name}: exit {code}, {errors.strip()}"
    if not armed[0].happened.is_set():
        return MISSED
    bed.members.faults.clear()
    if bed.members.primary is None:
        bed.members.elect(1)
    count = one.count(bed)
    bed.tried = code != DONE
    if code == DONE and count != 1:
        return f"{what}: done {count} times"
    if code == UNAVAILABLE and count != 0:
        return f"{what}: done {count} times, though nothing was done"
    if code not in (DONE, UNAVAILABLE, UNKNOWN) or count not in (0, 1):
        return f"{what}: done {count} times"
    if code == UNAVAILABLE or (code == UNKNOWN and one.safe):
        again, _, errors = one.act(bed)
        count = one.count(bed)
        if again != DONE or count != 1:
            return f"{what}; repeated: exit {again}, {errors.strip()}: done {count} times"
    if bed.members.violations:
        return f"{what}: {bed.members.violations[0]}"
    return None


def try_until_it_happens(one, faults):
    """On a busy machine a call may end before it meets the fault."""
    for _ in range(5):
        why = try_call(one, faults)
        if why != MISSED:
            return why
    return f"{one.name}: {MISSED}"


def try_all(*faults, only=tuple(CALLS)):
    with concurrent.futures.ThreadPoolExecutor(TRIES) as pool:
        wrong = [why for why in pool.map(lambda one: try_until_it_happens(one, faults), only) if why]
    if wrong:
        raise AssertionError("\n" + "\n".join(wrong))


def setUpModule():
    make_collections()


class Writes(unittest.TestCase):
    def test_the_primary_is_none_any_more_and_refuses(self):
        try_all({"how": "refused", "code": NOT_PRIMARY, "elect": 1})

    def test_it_steps_down_after_the_write_and_says_so(self):
        try_all({"how": "done", "code": STEPPED_DOWN, "elect": 1})

    def test_the_write_is_interrupted_after_it_was_done_and_may_be_retried(self):
        try_all({"how": "done", "code": INTERRUPTED, "labels": RETRYABLE, "elect": 2})

    def test_the_answer_is_lost_with_the_primary(self):
        try_all({"how": "lost", "elect": 1})

    def test_the_request_is_lost_with_the_primary(self):
        try_all({"how": "cut", "elect": 2})

    def test_a_majority_did_not_confirm_what_was_done(self):
        try_all({"how": "unconfirmed", "code": NOT_CONFIRMED})

    def test_a_primary_steps_down_before_the_majority_has_confirmed(self):
        try_all({"how": "unconfirmed", "code": NOT_PRIMARY, "elect": 1})

    def test_what_a_majority_did_not_confirm_is_rolled_back(self):
        try_all({"how": "reverted", "code": NOT_CONFIRMED, "elect": 1})

    def test_what_is_rolled_back_was_announced_as_stepping_down(self):
        try_all({"how": "reverted", "code": STEPPED_DOWN, "labels": RETRYABLE, "elect": 1})


if __name__ == "__main__":
    tap.run("__main__", sys.argv[3:])

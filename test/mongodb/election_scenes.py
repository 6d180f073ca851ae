#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Clients that live through elections, in sets that only say they are one (members.py):

  election_scenes.py DIBS URI One|Many     a few clients of one name; twenty, and workers
"""
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
import unittest

import dibs
import dibs_h as h
import tap
from election_bed import (DONE, FULL, LOST, UNAVAILABLE, UNKNOWN, DIBS, Bed, call, found_now, insert,
                          make_collections)
from members import (INTERRUPTED, NOT_CONFIRMED, NOT_PRIMARY, NOT_PRIMARY_READ, RETRYABLE, STEPPED_DOWN,
                     wait_until)

PATIENCE = 240


def start(bed, *args):
    return subprocess.Popen([DIBS, *args], env=os.environ | {"DIBS_STORE": bed.uri}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def term_of(fence):
    """Of a fence that was drawn just now: it is 2^32 times (the term plus one), and the clock since 2026 in ms times 1024."""
    clock = round((time.time() - 1767225600) * 1000) * 1024
    return round((fence - clock) / 2**32) - 1


def add_task(store, kind, unique=None):
    """(status, number)"""
    options, number = h.dibs_task_options(unique=unique), ctypes.c_uint64()
    status = store._call(dibs.library.dibs_task_add, kind.encode(), b"text", ctypes.c_size_t(4), ctypes.byref(options),
                         ctypes.byref(number), answers=[h.Status.REPLAY])
    return status.name, number.value


def claim_task(store, kind):
    """The number of the task; None: there was none to claim."""
    options, task, count = h.dibs_claim_options(most=1, timeout_ms=600000), ctypes.POINTER(h.dibs_task)(), ctypes.c_size_t(1)
    store._call(dibs.library.dibs_tasks_claim, kind.encode(), ctypes.byref(options), ctypes.byref(task), ctypes.byref(count),
                answers=[h.Status.NOT_FOUND])
    number = task.contents.nr if count.value else None
    if count.value:
        dibs.library.dibs_task_free(task)
    return number


def setUpModule():
    make_collections()


class Scenario(unittest.TestCase):
    def setUp(self):
        self.bed = Bed()
        self.members = self.bed.members
        self.children = []

    def tearDown(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        self.assertEqual(self.members.violations[:3], [])

    def start(self, *args):
        self.children.append(start(self.bed, *args))
        return self.children[-1]

    def holder(self, *options):
        """A process that holds `name` until let_go(); returns when its command runs."""
        folder = self.bed.folder.name
        child = self.start("run", "--no-history", *options, self.bed.name("name"), "--", "sh", "-c",
                           'touch "$1/runs"; until [ -e "$1/over" ]; do sleep 0.1; done', "sh", folder)
        self.assertTrue(wait_until(lambda: os.path.exists(folder + "/runs") or child.poll() is not None, PATIENCE))
        self.assertIsNone(child.poll())
        return child

    def let_go(self):
        open(self.bed.folder.name + "/over", "w").close()

    def wait_for_waiter(self, name):
        self.assertTrue(wait_until(lambda: "waits" in call(self.bed.direct, "show", name, "--json")[1], PATIENCE))


class One(Scenario):
    # ---- Fences ----

    def test_fences_have_the_term_and_grow_over_elections(self):
        with dibs.Store(self.bed.uri) as store:
            last = 0
            for turn in range(6):
                for name in (self.bed.name("remembered"), self.bed.name(f"new-{turn}")):
                    with store.acquire(name, ttl=30, wait=30) as lease:
                        self.assertGreater(lease.fence, last if name == self.bed.name("remembered") else 0)
                        if name == "remembered":
                            last = lease.fence
                # The store has noticed by now.
                with store.acquire(self.bed.name(f"later-{turn}"), ttl=30, wait=30) as lease:
                    self.assertEqual(term_of(lease.fence), self.members.term)
                self.members.elect_next()
        code, out, _ = self.bed.dibs("run", self.bed.name("remembered"), "--", "sh", "-c", "echo $DIBS_FENCE")
        self.assertEqual((code, term_of(int(out))), (DONE, self.members.term))
        self.assertGreater(int(out), last)

    # ---- Holders and waiters ----

    def test_a_holder_keeps_its_lease_over_elections(self):
        child = self.holder("--ttl", "9s")
        for how in ({"how": "refused", "code": NOT_PRIMARY}, {"how": "done", "code": STEPPED_DOWN}, {"how": "lost"}):
            fault = self.members.arm("update", "_leases", elect=(self.members.primary + 1) % 3, **how)
            self.assertTrue(fault.happened.wait(PATIENCE), how)
            renewed = self.members.done["update", "dibs_leases"]
            self.assertTrue(wait_until(lambda: self.members.done["update", "dibs_leases"] > renewed, PATIENCE))
            self.assertIsNone(child.poll(), how if child.poll() is None else child.stderr.read())
            self.assertEqual(call(self.bed.direct, "run", "--try", self.bed.name("name"), "--", "true")[0], FULL)
        self.let_go()
        self.assertEqual(child.wait(PATIENCE), DONE, child.stderr.read())

    def test_a_holder_is_told_in_time_and_waiters_stay_when_there_is_no_primary(self):
        holder = self.holder("--ttl", "8s")
        waiter = self.start("run", "--no-history", "--wait", "240s", self.bed.name("name"), "--", "true")
        self.wait_for_waiter(self.bed.name("name"))
        self.members.elect(-1)
        began = time.monotonic()
        self.assertEqual(holder.wait(PATIENCE), LOST)
        ended = time.monotonic()
        self.assertLess(ended - began, 8)  # its command has ended before the lease
        code, _, errors = self.bed.dibs("record", "put", self.bed.name("key"), "--create", content="x")
        self.assertEqual(code, UNAVAILABLE, errors)
        self.assertIsNone(waiter.poll())
        self.members.elect(2)
        self.assertEqual(waiter.wait(PATIENCE), DONE, waiter.stderr.read())
        self.assertEqual(self.bed.truth("record", "get", self.bed.name("key")), "")

    def test_a_waiter_is_next_when_the_release_meets_an_election(self):
        for how in ({"how": "done", "code": INTERRUPTED, "labels": RETRYABLE}, {"how": "lost"},
                    {"how": "unconfirmed", "code": NOT_CONFIRMED}):
            with dibs.Store(self.bed.uri) as store:
                lease = store.acquire(self.bed.name("turn"), ttl=5, wait=60)
                waiter = self.start("run", "--no-history", "--wait", "240s", self.bed.name("turn"), "--", "true")
                self.wait_for_waiter(self.bed.name("turn"))
                fault = self.members.arm("update", "_leases", elect=(self.members.primary + 1) % 3, **how)
                try:
                    lease.release()
                except dibs.Error as error:  # it is released, or ends after its ttl
                    self.assertEqual(error.status.name, "UNKNOWN")
                self.assertTrue(fault.happened.is_set())
                self.assertEqual(waiter.wait(PATIENCE), DONE, waiter.stderr.read())

    def test_a_waiter_goes_on_when_the_primary_falls_silent(self):
        holder = self.holder("--ttl", "8s")
        waiter = self.start("run", "--no-history", "--wait", "240s", self.bed.name("name"), "--", "true")
        self.wait_for_waiter(self.bed.name("name"))
        self.members.all[0].running.clear()
        self.members.elect(1)
        self.let_go()
        self.assertEqual(waiter.wait(PATIENCE), DONE)
        self.members.all[0].running.set()
        self.assertIn(holder.wait(PATIENCE), (DONE, LOST))

    # ---- Two primaries ----

    def test_a_stale_primary_is_not_used_beside_the_new_one(self):
        old = self.members.all[0]
        with dibs.Store(self.bed.uri) as store:
            store.put(self.bed.name("key"), b"1", flags=1)
            self.members.elect(1)
            old.claims = 1
            try:
                store.put(self.bed.name("key"), b"2", flags=2)
            except dibs.Error as error:  # it still asked the member that was the primary
                self.assertEqual(error.status.name, "UNKNOWN")
                self.assertEqual(self.bed.truth("record", "get", self.bed.name("key")), "1")
                store.put(self.bed.name("key"), b"2", flags=2)
            self.assertEqual(self.bed.truth("record", "get", self.bed.name("key")), "2")
            self.assertEqual(self.bed.dibs("record", "put", self.bed.name("key"), "--force", content="3")[0], DONE)
            self.assertEqual(self.bed.truth("record", "get", self.bed.name("key")), "3")
            self.assertEqual(store.get(self.bed.name("key")).value, b"3")

    def test_a_client_that_reaches_only_the_stale_primary_changes_nothing(self):
        self.assertEqual(self.bed.dibs("record", "put", self.bed.name("key"), "--create", content="old")[0], DONE)
        self.members.all[0].claims = 1
        self.members.elect(1)
        for member in self.members.all[1:]:
            member.down = True
            member.cut()
        began = time.monotonic()
        code, _, errors = self.bed.dibs("record", "put", self.bed.name("key"), "--force", content="new")
        self.assertEqual(code, UNKNOWN, errors)
        self.assertLess(time.monotonic() - began, 30)
        code, _, errors = self.bed.dibs("record", "get", self.bed.name("key"))
        self.assertEqual(code, UNAVAILABLE, errors)  # what a stale primary has may be old
        self.members.all[0].claims = 0
        for member in self.members.all[1:]:
            member.down = False
        self.assertEqual(self.bed.truth("record", "get", self.bed.name("key")), "old")
        self.assertEqual(self.bed.dibs("record", "put", self.bed.name("key"), "--force", content="new")[0], DONE)
        self.assertEqual(self.bed.truth("record", "get", self.bed.name("key")), "new")


    # ---- Members that show, for a moment, less than what was confirmed ----

    def one_connection(self, *more):
        return dibs.Store("&".join((self.bed.uri, "connections=1", *more)))

    def test_a_unique_text_is_added_once_when_a_new_primary_shows_older_tasks(self):
        kind = self.bed.name("older")
        older, count = found_now(self.bed, "dibs_tasks", {"kind": kind})
        self.assertEqual(count, 0)
        with self.one_connection() as store:
            status, number = add_task(store, kind, b"one")
            self.assertEqual(status, "OK")
            self.members.all[1].older["_tasks"] = older
            self.members.elect(1)
            self.assertEqual(add_task(store, kind, b"one"), ("REPLAY", number))
        self.assertEqual(found_now(self.bed, "dibs_tasks", {"kind": kind})[1], 1)

    def test_a_unique_text_is_added_once_when_the_primary_changes_while_tasks_are_read(self):
        kind = self.bed.name("older")
        older = found_now(self.bed, "dibs_tasks", {"kind": kind})[0]
        with self.one_connection() as store:
            number = add_task(store, kind, b"one")[1]
            self.members.all[1].older["_tasks"] = older
            fault = self.members.arm("find", "_tasks", "refused", code=NOT_PRIMARY_READ, elect=1)
            self.assertEqual(add_task(store, kind, b"one"), ("REPLAY", number))
            self.assertTrue(fault.happened.is_set())
        self.assertEqual(found_now(self.bed, "dibs_tasks", {"kind": kind})[1], 1)

    def test_a_task_is_claimed_once_when_tasks_are_shown_older_than_their_kind(self):
        # Behind a mongos: another member answers, and nobody sees that.
        kind = self.bed.name("older")
        with self.one_connection() as store:
            number = add_task(store, kind)[1]
            older, count = found_now(self.bed, "dibs_tasks", {"kind": kind})
            self.assertEqual(count, 1)
            self.assertEqual(claim_task(store, kind), number)
            self.members.all[0].older["_tasks"] = older
            self.assertIsNone(claim_task(store, kind))

    def test_a_claim_that_was_given_back_holds_nothing_when_a_primary_elected_meanwhile_shows_it_older(self):
        seats, claims = self.bed.name("older"), [self.bed.name(word) for word in "abcd"]
        with self.one_connection("claims=1") as store:
            store.set_stock(seats, 4)
            for claim in claims[:3]:
                store.take(seats, 1, claim=claim)
            self.assertFalse(store.give(seats, claims[0]).replay)
            older = {"_claims": found_now(self.bed, "dibs_claims", {"_id": claims[0]})[0],
                     "_stocks": found_now(self.bed, "dibs_stocks", {"_id": seats})[0]}
            store.take(seats, 2, claim=claims[3])  # the other claims are outside of the stock's document now, which is full
            self.members.all[1].older.update(older)
            # At first it answers by what it remembers of the stock, then it has read it.
            fault = self.members.arm("find", "_claims", "refused", code=NOT_PRIMARY_READ, elect=1, nth=2)
            with self.assertRaises(dibs.Error) as refused:
                store.take(seats, 1, claim=claims[0])
            self.assertTrue(fault.happened.is_set())
            self.assertEqual(refused.exception.status.name, "CONFLICT")

    # ---- What is asked, and what is refused ----

    def test_every_listing_shows_what_the_majority_has(self):
        self.bed.truth("task", "add", self.bed.name("kind"), "text")
        for args in (("ls",), ("task", "ls"), ("task", "counts"), ("counter", "ls"), ("history",)):
            self.assertEqual(self.bed.dibs(*args)[0], DONE, args)
        asked = {name for name, _ in self.members.seen}
        self.assertTrue({"find", "aggregate"} <= asked, asked)

    def test_the_token_of_new_tasks_is_kept_when_its_insert_was_refused(self):
        kind = self.bed.name("token")
        with dibs.Store(self.bed.uri) as store:
            fault = self.members.arm("insert", "_tokens", "element", code=112)
            self.assertEqual(add_task(store, kind)[0], "OK")
            self.assertTrue(fault.happened.is_set())
        self.assertEqual(found_now(self.bed, "dibs_tokens", {"kind": kind})[1], 1)

    def test_a_run_is_kept_when_its_insert_was_refused(self):
        fault = self.members.arm("insert", "_runs", "element", code=112)
        self.assertEqual(self.bed.dibs("run", self.bed.name("kept"), "--", "true")[0], DONE)
        self.assertTrue(fault.happened.is_set())
        self.assertIn(self.bed.name("kept"), self.bed.truth("history"))


class Many(Scenario):
    def test_twenty_processes_take_turns_over_elections(self):
        count = os.path.join(self.bed.folder.name, "count")
        with open(count, "w") as file:
            file.write("0")
        script = 'n=$(cat "$1"); sleep 0.02; echo $((n + 1)) >"$1"; echo "$DIBS_FENCE" >>"$1.fences"'
        children = [self.start("run", "--no-history", "--ttl", "10s", "--wait", "300s", self.bed.name("turn"), "--", "sh", "-c", script,
                               "sh", count) for _ in range(20)]
        over = threading.Event()

        def elect():
            faults = [{"how": "refused", "code": NOT_PRIMARY}, {"how": "done", "code": STEPPED_DOWN}, {"how": "lost"},
                      {"how": "unconfirmed", "code": NOT_CONFIRMED}]
            for turn in range(1000):
                fault = self.members.arm("update", "_leases", nth=8, elect=turn % 3, **faults[turn % 4])
                while not fault.happened.wait(0.05):
                    if over.is_set():
                        return

        thread = threading.Thread(target=elect)
        thread.start()
        try:
            codes = [child.wait(300) for child in children]
        finally:
            over.set()
            thread.join()
        self.assertEqual(codes, [DONE] * 20, [child.stderr.read() for child in children if child.returncode])
        self.assertGreater(self.members.term, 3)
        fences = [int(line) for line in open(count + ".fences")]
        self.assertEqual(int(open(count).read()), 20)
        self.assertEqual(fences, sorted(set(fences)))

    def work_off(self, remembers):
        """Each document is worked on while claims and ends meet elections; (key, fence) of each step."""
        bed = Bed(remembers)
        done, table = os.path.join(bed.folder.name, "done"), os.path.join(bed.folder.name, "t.ini")
        with open(table, "w") as file:
            file.write(f"[t]\ntable = gateways_{bed.number}\nkey = _id\nphase = phase\nlocked_at = lockedAt\nupdated_at = updatedAt\n"
                       "fence = fence\n")
        keys = [f"g{number}" for number in range(8)]
        insert(bed, f"gateways_{bed.number}", [{"_id": key, "phase": "Deleting"} for key in keys])
        worker = start(bed, "worker", "--table", table, "--phase", "Deleting", "--timeout", "10s", "--jobs", "2", "--",
                       "sh", "-c", 'echo "$DIBS_KEY $DIBS_FENCE" >>"$1"; echo Deleted >"$DIBS_NEXT_PHASE"', "sh", done)
        self.children.append(worker)
        for turn, how in enumerate([{"how": "lost"}, {"how": "done", "code": STEPPED_DOWN}, {"how": "refused", "code": NOT_PRIMARY},
                                    {"how": "done", "code": INTERRUPTED, "labels": RETRYABLE},
                                    {"how": "unconfirmed", "code": NOT_CONFIRMED}]):
            bed.members.arm("findAndModify", f"gateways_{bed.number}", nth=3, elect=turn % 3, **how)
        listed = ("task", "ls", "--table", table, "--phase", "Deleted")
        self.assertTrue(wait_until(lambda: call(bed.direct, *listed)[1].count("Deleted") == len(keys), PATIENCE))
        self.assertEqual(bed.members.faults, [])
        self.assertEqual(bed.members.violations, [])
        worker.terminate()
        worker.wait(PATIENCE)
        steps = open(done).read().split("\n")[:-1]
        self.assertEqual({step.split()[0] for step in steps}, set(keys))
        return steps

    def test_no_claim_of_a_task_has_the_fence_of_another_one(self):
        for remembers in (True, False):
            steps = self.work_off(remembers)
            self.assertEqual(len(steps), len(set(steps)), steps)
            # An end that was not confirmed may be done again, by a claim of its own; nothing else is.
            self.assertLessEqual(len(steps), 8 + 5, steps)

    def first_answer(self, bed, *faults):
        """What the driver answers first for the end of a task that meets these faults."""
        collection, file, error = f"ends_{bed.number}", bed.folder.name + "/trace", h.dibs_error()
        insert(bed, collection, [{"_id": "x", "phase": "Deleting"}])
        options = h.dibs_table_options(table=collection.encode(), key=b"_id", phase=b"phase", locked_at=b"lockedAt",
                                       updated_at=b"updatedAt", fence=b"fence")
        table, task, count = ctypes.c_void_p(), ctypes.POINTER(h.dibs_task)(), ctypes.c_size_t(1)
        with dibs.Store(f"trace+{bed.uri}&trace.file={file}") as store:
            dibs.check(dibs.library.dibs_table_declare(ctypes.byref(options), ctypes.byref(table), ctypes.byref(error)), error)
            claim = h.dibs_claim_options(table=table, most=1, timeout_ms=60000)
            store._call(dibs.library.dibs_tasks_claim, collection.encode(), ctypes.byref(claim), ctypes.byref(task),
                        ctypes.byref(count))
            self.assertEqual(count.value, 1)
            armed = [bed.members.arm("findAndModify", collection, **fault) for fault in faults]
            dibs.library.dibs_task_unlock(task, b"Deleted", ctypes.byref(error))
            self.assertTrue(all(fault.happened.is_set() for fault in armed))
            dibs.library.dibs_task_free(task)
            dibs.library.dibs_table_free(table)
        with open(file) as trace:
            return [one["status"] for line in trace for one in json.loads(line).get("each", []) if one["op"] == "task.end"][0]

    def test_an_end_whose_answer_is_lost_is_repeated_by_the_library(self):
        lost, refused = {"how": "lost", "elect": 1}, {"how": "refused", "code": NOT_PRIMARY, "elect": 2}
        self.assertEqual(self.first_answer(Bed(), lost), "OK")
        # Neither a refusal of the repeat nor a repeat that finds nothing says that nothing was done.
        self.assertEqual(self.first_answer(Bed(), lost, refused), "UNKNOWN")
        self.assertEqual(self.first_answer(Bed(remembers=False), lost), "UNKNOWN")


if __name__ == "__main__":
    tap.run("__main__", sys.argv[3:])

# SPDX-License-Identifier: MIT
"""What a program in Python can do with dibs: client_test.py URI [PATTERN]...

`sqlite:` is a file of each test's own.  Names are drawn, so that a server may be shared.
"""
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import dibs
import dibs_h
import tap
from dibs import Status

here = os.path.dirname(os.path.abspath(__file__))
LONG = 20  # seconds within which everything happens that is waited for
uri = ""


def until(condition, what):
    """Waits until the condition is true."""
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end, f"not within {LONG} s: {what}"
        time.sleep(0.01)


class Calls(list):
    """Collects the calls of a callback, from any thread."""

    def __init__(self):
        super().__init__()
        self.changed = threading.Condition()

    def __call__(self, *arguments):
        with self.changed:
            self.append(arguments)
            self.changed.notify_all()

    def wait(self, count=1):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self) >= count, LONG), f"no {count} calls within {LONG} s: {self}"
        return self[count - 1]


class Holder:
    """Another process, which holds a lease: see holder.py."""

    def __init__(self, uri, name, ttl, key="none"):
        command = [sys.executable, "-B", os.path.join(here, "holder.py"), uri, name, str(ttl), key]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=here)
        word, fence = self.process.stdout.readline().split()
        assert word == "held"
        self.fence = int(fence)

    def ask(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        self.signal(signal.SIGCONT)
        self.process.communicate(timeout=LONG)


class Client(unittest.TestCase):
    def setUp(self):
        self.uri = uri
        if uri == "sqlite:":
            folder = tempfile.TemporaryDirectory(prefix="dibs-python.")
            self.addCleanup(folder.cleanup)
            self.uri = f"sqlite://{folder.name}/dibs.db"
        self.name = f"{self._testMethodName}-{secrets.token_hex(6)}"
        self.store = self.open()

    def open(self, **options):
        store = dibs.Store(self.uri, **options)
        self.addCleanup(store.close)
        return store

    def holder(self, ttl, key="none"):
        holder = Holder(self.uri, self.name, ttl, key)
        self.addCleanup(holder.end)
        return holder

    def refused(self, status, call, *arguments, **options):
        """The call answers with this status; returns its text."""
        with self.assertRaises(dibs.Error) as caught:
            call(*arguments, **options)
        self.assertEqual(caught.exception.status, status, caught.exception)
        return str(caught.exception)

    def needs_records(self):
        if self.uri.startswith("redis:"):
            text = self.refused(Status.UNSUPPORTED, self.store.put, self.name, b"x", flags=dibs_h.UNCHECKED)
            self.skipTest(f"no records here: {text}")

    # ---- Holding ----

    def test_a_lease_is_held_and_released(self):
        with self.store.acquire(self.name, ttl=10, owner="me") as lease:
            self.assertTrue(lease.alive)
            self.assertEqual(lease.name, self.name)
            self.assertGreater(lease.fence, 0)
            self.assertGreater(lease.left, 8)
            self.assertLessEqual(lease.left, 10)
            (info,) = self.store.list(self.name)
            self.assertEqual((info.owner, info.state, info.fence), ("me", dibs_h.HOLDS, lease.fence))
            first = lease.fence
        self.assertEqual(self.store.list(self.name), [])
        with self.store.acquire(self.name) as lease:
            self.assertGreater(lease.fence, first)

    def test_a_held_name_is_refused_with_a_text(self):
        other = self.open()
        with self.store.acquire(self.name, owner="first"):
            text = self.refused(Status.HELD, other.acquire, self.name)
            self.assertIn(self.name, text)
            self.refused(Status.TIMEOUT, other.acquire, self.name, wait=0.05)

    def test_the_wrong_argument_is_named(self):
        text = self.refused(Status.INVALID, self.store.acquire, self.name, ttl=0.001)
        self.assertIn("ttl", text)
        self.refused(Status.INVALID, self.store.acquire, "a\x01b")

    def test_what_c_would_cut_is_refused(self):
        for call in (lambda: self.store.acquire(self.name + "\0b"), lambda: self.store.acquire(self.name, ttl=1e300),
                     lambda: self.store.acquire(self.name, wait=float("nan"))):
            with self.assertRaises(ValueError):
                call()

    def test_renewing_moves_the_end(self):
        with self.store.acquire(self.name, ttl=5, renew=False) as lease:
            lease.renew(60)
            self.assertGreater(lease.left, 50)

    def test_a_renewal_completes_later(self):
        with self.store.acquire(self.name, ttl=5, renew=False) as lease:
            done = Calls()
            lease.renew_start(done, 60)
            self.assertEqual(done.wait(), (lease, None))
            self.assertGreater(lease.left, 50)
            self.assertGreater(lease.store_left, lease.left)

    def test_a_release_keeps_the_name_for_a_while(self):
        lease = self.store.acquire(self.name, ttl=30)
        lease.release_after(0.5)
        other = self.open()
        self.refused(Status.HELD, other.acquire, self.name)
        with other.acquire(self.name, wait=LONG) as next:
            self.assertGreater(next.fence, 0)
        lease.free()

    def test_a_thread_that_waits_lets_others_run(self):
        """A blocking call gives up Python's lock: the thread that releases gets on meanwhile."""
        other = self.open()
        held = self.store.acquire(self.name)
        got = Calls()

        def wait():
            with other.acquire(self.name, wait=LONG) as lease:
                got(lease.fence)

        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: any(i.state == dibs_h.WAITS for i in self.store.show(self.name)), "the waiter is listed")
        fence = held.fence
        held.release()
        self.assertGreater(got.wait()[0], fence)
        thread.join()
        held.free()

    def test_another_process_waits_by_callback(self):
        holder = self.holder(30)
        done = Calls()
        waiting = self.store.acquire_start(self.name, done, wait=LONG)
        until(lambda: any(i.state == dibs_h.WAITS for i in self.store.show(self.name)), "the waiter is listed")
        self.assertEqual(done, [])
        self.assertEqual(holder.ask("release"), "OK")
        lease, error = done.wait()
        self.assertIs(lease, waiting)
        self.assertIsNone(error)
        self.assertGreater(lease.fence, holder.fence)
        released = Calls()
        lease.release_start(released)
        self.assertEqual(released.wait(), (lease, None))

    def test_a_wait_is_cancelled(self):
        with self.store.acquire(self.name):
            done = Calls()
            waiting = self.open().acquire_start(self.name, done, wait=dibs.FOREVER)
            waiting.cancel()
            lease, error = done.wait()
            self.assertEqual(error.status, Status.CANCELLED)

    def test_many_are_acquired_together(self):
        names = [f"{self.name}-{i}" for i in range(3)]
        leases = self.store.acquire_many(names, wait=1)
        self.assertEqual([lease.name for lease in leases], names)
        self.assertEqual(sorted(i.name for i in self.store.list(self.name)), names)
        for lease in leases:
            lease.release()

    def test_counted_leases_have_slots(self):
        stores = [self.open() for _ in range(3)]
        leases = [store.acquire(self.name, mode=dibs_h.COUNTED, slots=2) for store in stores[:2]]
        self.assertEqual(sorted(lease.slot for lease in leases), [0, 1])
        self.refused(Status.HELD, stores[2].acquire, self.name, mode=dibs_h.COUNTED, slots=2)

    # ---- Losing ----

    def test_a_stopped_process_loses_its_lease(self):
        holder = self.holder(1)
        holder.signal(signal.SIGSTOP)
        with self.store.acquire(self.name, wait=LONG) as lease:
            self.assertGreater(lease.fence, holder.fence)
            holder.signal(signal.SIGCONT)
            alive, calls, *text = holder.ask("look").split(" ", 2)
            self.assertEqual((alive, calls), ("dead", "1"))
            self.assertRegex(text[0], "^LOST: ")
            self.assertRegex(holder.ask("release"), "^LOST: ")

    def test_a_late_write_is_refused(self):
        self.needs_records()
        holder = self.holder(1, key=self.name)
        holder.signal(signal.SIGSTOP)
        with self.store.acquire(self.name, wait=LONG) as lease:
            self.store.put(self.name, b"newer", lease=lease)
            holder.signal(signal.SIGCONT)
            self.assertRegex(holder.ask("put"), "^(STALE|LOST): .*")
            self.assertEqual(self.store.get(self.name).value, b"newer")

    def test_an_older_fence_is_stale(self):
        """The handle is not known to be lost yet, and the record refuses it all the same."""
        self.needs_records()
        other = self.open()
        old = self.store.acquire(self.name, ttl=0.5, renew=False)
        old.detach()
        with other.acquire(self.name, wait=LONG) as new:
            other.get(self.name, lease=new)
            late = self.store.adopt(self.name, secrets.token_hex(16), old.fence)
            text = self.refused(Status.STALE, self.store.put, self.name, b"late", lease=late)
            self.assertIn(str(new.fence), text)
            late.free()

    def test_breaking_calls_on_lost(self):
        lost = Calls()
        lease = self.store.acquire(self.name, ttl=2, on_lost=lost)
        self.open().break_(self.name, who="the operator")
        self.assertIs(lost.wait()[0], lease)
        self.assertEqual(lost[0][1].status, Status.LOST)
        broken = [info for info in self.store.show(self.name) if info.state in (dibs_h.BREAKING, dibs_h.BROKEN)]
        self.assertEqual({info.owner for info in broken if info.state == dibs_h.BROKEN}, {"the operator"})
        lease.free()

    def test_a_forked_child_is_refused(self):
        with self.store.acquire(self.name) as lease:
            child = os.fork()
            if child == 0:
                status = 0
                try:
                    lease.renew()
                except dibs.Error as error:
                    status = int(error.status)
                os._exit(status)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), Status.INVALID)
            self.assertTrue(lease.alive)

    # ---- Passing on ----

    def test_a_detached_lease_is_adopted_by_its_id(self):
        holder = self.holder(30)
        lease = self.store.adopt(self.name, holder.ask("give"), holder.fence)
        lease.renew(20)
        self.assertTrue(lease.alive)
        self.assertEqual(lease.fence, holder.fence)
        lease.release()
        self.assertEqual(self.store.list(self.name), [])

    def test_name_and_id_are_enough_to_adopt(self):
        """The fence is learned by the first renewal."""
        holder = self.holder(30)
        lease = self.store.adopt(self.name, holder.ask("give"))
        self.assertEqual(lease.fence, 0)
        lease.renew()
        self.assertEqual(lease.fence, holder.fence)
        lease.release()

    def test_an_id_finds_its_own_grant(self):
        id = secrets.token_hex(16)
        lease = self.store.acquire(self.name, id=id)
        with self.open().acquire(self.name, id=id) as again:
            self.assertEqual(again.fence, lease.fence)
            self.assertEqual(again.id, id)
        lease.free()

    # ---- Records ----

    def test_a_version_guards_a_record(self):
        self.needs_records()
        first = self.store.put(self.name, b"a\0b", flags=dibs_h.IF_ABSENT)
        self.assertEqual(self.store.get(self.name).value, b"a\0b")
        second = self.store.put(self.name, b"", if_version=first)
        self.assertEqual(self.store.get(self.name).version, second)
        self.assertEqual(self.store.get(self.name).value, b"")
        text = self.refused(Status.CONFLICT, self.store.put, self.name, b"late", if_version=first)
        self.assertIn(second, text)
        self.store.remove(self.name, if_version=second)
        self.refused(Status.NOT_FOUND, self.store.get, self.name)

    def test_an_update_repeats_until_it_fits(self):
        self.needs_records()
        self.store.put(self.name, b"1", flags=dibs_h.IF_ABSENT)
        other, seen = self.open(), []

        def count(record):
            seen.append(record.value)
            if len(seen) == 1:
                other.put(self.name, b"5", if_version=record.version)
            return b"%d" % (int(record.value) + 1)

        self.store.update(self.name, count)
        self.assertEqual(seen, [b"1", b"5"])
        self.assertEqual(self.store.get(self.name).value, b"6")
        with self.assertRaises(ZeroDivisionError):
            self.store.update(self.name, lambda record: 1 // 0)
        self.assertEqual(self.store.get(self.name).value, b"6")

    # ---- Stock and once ----

    def test_a_stock_is_taken_and_given_back(self):
        self.needs_records()
        self.store.set_stock(self.name, 3)
        claim = secrets.token_hex(8)
        taken = self.store.take(self.name, 2, claim=claim)
        self.assertEqual((taken.got, taken.replay), (2, False))
        self.assertTrue(self.store.take(self.name, 2, claim=claim).replay)
        self.refused(Status.FULL, self.store.take, self.name, 2)
        self.assertEqual(self.store.take(self.name, 2, flags=dibs_h.TAKE_PARTIAL).got, 1)
        self.store.give(self.name, claim)
        stock = self.store.stock(self.name)
        self.assertEqual((stock.used, stock.limit), (1, 3))

    def test_once_runs_once(self):
        self.needs_records()
        runs = Calls()

        def work(fence):
            runs(fence)
            return b"answer\0" * 100

        with self.assertRaises(ZeroDivisionError):
            self.store.once(self.name, lambda fence: 1 // 0)
        self.assertEqual(self.store.once(self.name, work), (b"answer\0" * 100, True))
        self.assertEqual(self.open().once(self.name, work), (b"answer\0" * 100, False))
        self.store.forget(self.name)
        self.assertEqual(self.store.once(self.name, lambda fence: b""), (b"", True))
        self.assertEqual(len(runs), 1)

    # ---- What it is doing ----

    def test_metrics_count(self):
        with self.store.acquire(self.name):
            metrics = {metric.name: metric for metric in self.store.metrics()}
        self.assertEqual(metrics["acquired"].value, 1)
        self.assertEqual(metrics["held"].value, 1)
        self.assertEqual(metrics["acquire"].kind, dibs_h.LATENCY)
        latency = metrics["acquire"].latency
        self.assertEqual((latency.count, latency.steps[-1]), (1, 1))  # each step counts what is below it, too
        self.assertLessEqual(latency.p50, latency.max)

    def test_the_library_has_the_version_of_the_header(self):
        version = (dibs_h.VERSION_MAJOR, dibs_h.VERSION_MINOR, dibs_h.VERSION_PATCH)
        self.assertEqual(dibs.library.dibs_version().decode(), "%d.%d.%d" % version)
        for status in Status:
            self.assertEqual(dibs.library.dibs_status_name(status).decode(), status.name)
        self.assertNotIn("secret", self.store.uri)

    def test_showing_and_breaking_complete_later(self):
        lost, shown, broken = Calls(), Calls(), Calls()
        lease = self.store.acquire(self.name, ttl=2, owner="first", on_lost=lost)
        other = self.open()
        other.show_start(self.name, shown)
        entries, error = shown.wait()
        self.assertIsNone(error)
        self.assertEqual([(info.owner, info.fence) for info in entries], [("first", lease.fence)])
        other.break_start(self.name, broken, wait=LONG, who="the operator")
        self.assertEqual(lost.wait()[1].status, Status.LOST)
        lease.free()
        self.assertEqual(broken.wait(), (None,))
        shown.clear()
        other.show_start("nobody-" + self.name, shown)
        entries, error = shown.wait()
        self.assertEqual((entries, error.status), ([], Status.NOT_FOUND))

    # ---- An event loop ----

    def test_a_loop_runs_the_callbacks(self):
        store = self.open(loop=True)
        threads, done = [], Calls()
        held = self.store.acquire(self.name)
        store.acquire_start(self.name, lambda *arguments: (threads.append(threading.current_thread()), done(*arguments)), wait=LONG)
        with selectors.DefaultSelector() as selector:
            selector.register(store, selectors.EVENT_READ)
            self.assertEqual(selector.select(0.1), [])
            held.release()
            end = time.monotonic() + LONG
            while not done and time.monotonic() < end:
                for key, _ in selector.select(end - time.monotonic()):
                    key.fileobj.dispatch()
        lease, error = done[0]
        self.assertIsNone(error)
        self.assertEqual(threads, [threading.current_thread()])
        lease.release()

    def test_nothing_is_kept_of_freed_leases(self):
        """Many leases with callbacks: what the binding keeps for them goes with them."""
        for _ in range(50):
            with self.store.acquire(self.name, on_lost=Calls()):
                pass
        done = Calls()
        self.store.acquire_start(self.name, done).free()
        done.wait()
        until(lambda: not dibs._callbacks, "no callback is kept")


if __name__ == "__main__":
    uri = sys.argv[1]
    tap.run("__main__", sys.argv[2:])

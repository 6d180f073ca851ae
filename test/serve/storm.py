# SPDX-License-Identifier: MIT
"""Clients of two daemons on one store, while one daemon is killed again and again, the other one is stopped for seconds
and its answers are lost: what the clients believe is compared at the end.

usage: storm.py DIBS PROXY [URI] [--seconds N] [--seed N]

- No two clients believe at one time that they hold a name, and the fences of a name grow.
- Each acknowledged write of a record is in it, once; a refused one is not.
- What is used of a stock is the sum of the claims that were acknowledged, and never more than the limit.
- Each acknowledged task is done once.
- Redis keeps leases only, so the storm there is one of leases.
- The daemon that lives has no more descriptors and hardly more memory than before.
"""
import argparse
import contextlib
import collections
import random
import secrets
import signal
import sys
import tempfile
import threading
import time

from checks import PATIENCE_S, check, end, wait_until
from daemon import Client, Daemon, Proxy

NAMES, RECORDS, LIMIT = 4, 3, 60
TTL_MS = 2000
ANSWER_S = 3  # a client that has no answer after it repeats its request
WARM = 0.3    # of the time, before descriptors and memory are counted
GROWTH_KIB = 8192
IDLE_FDS = 8  # connections of the store may be open or not, each with two files


class Unknown(Exception):
    """There was no answer that says what happened."""


class World:
    """What all clients share, and what they believe."""

    def __init__(self, ports, seed):
        self.ports, self.seed = ports, seed
        self.end = self.pause = False
        self.leases_only = False
        self.held = collections.defaultdict(list)     # name: (from, until, fence)
        self.written = collections.defaultdict(set)   # record: tokens that were acknowledged
        self.refused = collections.defaultdict(set)
        self.taken = {}                               # claim: True, False, None for unknown
        self.most_used = 0
        self.added, self.maybe_added = set(), set()   # payloads of tasks
        self.done = collections.Counter()             # payload: acknowledged ends
        self.doubtful = []                            # ends without an answer
        self.counts = collections.Counter()
        self.errors = []
        self.lock = threading.Lock()
        self.busy = 0

    def count(self, what):
        with self.lock:
            self.counts[what] += 1


class Actor:
    """A client in a thread of its own, which repeats what has no answer, at either daemon."""

    def __init__(self, world, nth):
        self.world = world
        self.rng = random.Random(f'{world.seed} {nth}')
        self.client = Client(world.ports, ANSWER_S)
        self.nth = nth

    def send(self, method, path, body=None, headers=None, tries=8):
        """`sure`: no earlier attempt is without an answer, so that a refusal says that nothing was done."""
        for nth in range(tries):
            try:
                answer = self.client.once(self.rng.randrange(len(self.client.connections)), method, path, body, headers)
                if answer.status not in (503, 504):
                    self.world.count(f'{answer.status}')
                    if answer.status in (400, 405, 413, 500, 501, 502):
                        raise AssertionError(f'{method} {path}: {answer.status} {answer.body}')
                    answer.sure = nth == 0
                    return answer
                self.world.count(f'{answer.status}')
            except OSError:
                self.world.count('no answer')
            time.sleep(self.rng.uniform(0.01, 0.3))
        raise Unknown

    def run(self):
        while not self.world.end:
            if self.world.pause:
                self.client.close()
                time.sleep(0.05)
                continue
            with self.world.lock:
                self.world.busy += 1
            try:
                self.step()
            except Unknown:
                self.world.count('unknown')
            except Exception as e:  # a thread that ends would hide it
                self.world.errors.append(f'{type(self).__name__}: {e!r}')
            finally:
                with self.world.lock:
                    self.world.busy -= 1


class Holder(Actor):
    """Acquires a name, renews it or forgets to, writes a record under it, releases it."""

    def step(self):
        name = self.rng.randrange(NAMES)
        path, id_ = f'/v1/leases/storm%2F{name}', secrets.token_hex(16)
        wait = self.rng.choice([0, 0, 500, 2000])
        answer = self.send('POST', path, {'id': id_, 'ttl': TTL_MS, 'wait': wait})
        if answer.status != 201:
            time.sleep(self.rng.uniform(0, 0.1))
            return
        self.proof = {'Dibs-Lease': id_, 'Dibs-Fence': answer.headers['Dibs-Fence']}
        began, until = answer.came, answer.sent + answer.json['left_ms'] / 1000
        if wait or answer.came > until:  # what is left counts from when a request is sent
            began, until = self.renew(path)
        try:
            if not self.world.leases_only and self.rng.random() < 0.5:
                self.append(f'storm-{name}')
            while began and self.rng.random() < 0.6:
                time.sleep(self.rng.uniform(0, 0.4))
                _, later = self.renew(path)
                if time.monotonic() >= until:
                    break  # too late: the next renewal would begin a belief that had a gap
                until = max(until, later or 0)
        finally:
            with self.world.lock:
                if began:
                    self.world.held[name].append([began, min(until, time.monotonic()), int(self.proof['Dibs-Fence'])])
        if self.rng.random() < 0.85:
            self.send('DELETE', path, headers=self.proof)
            self.world.count('released')

    def renew(self, path):
        """From when and until when it believes that it holds the name; None, None: it does not."""
        try:
            answer = self.send('PATCH', path, {'ttl': TTL_MS}, self.proof, tries=2)
        except Unknown:
            return None, None
        if answer.status != 200:
            return None, None
        return answer.came, answer.sent + answer.json['left_ms'] / 1000

    def append(self, record):
        """Reads, waits and writes under the fence, even if the lease is lost meanwhile."""
        token = f'{self.nth}.{self.rng.getrandbits(40):x}'
        path = f'/v1/records/{record}'
        sealed = self.send('POST', path + '/seal', headers=self.proof)
        if sealed.status == 409:
            return
        time.sleep(self.rng.uniform(0, 0.5))
        answer = self.send('PUT', path, sealed.body + f'{token} '.encode(), self.proof)
        with self.world.lock:
            if answer.status == 204:
                self.world.written[record].add(token)
            elif answer.sure:
                self.world.refused[record].add(token)


class Writer(Actor):
    """Appends to a record by its version."""

    def step(self):
        record = f'plain-{self.rng.randrange(RECORDS)}'
        path, token = f'/v1/records/{record}', f'{self.nth}.{self.rng.getrandbits(40):x}'
        found = self.send('GET', path)
        guard = {'If-Match': found.headers['ETag']} if found.status == 200 else {'If-None-Match': '*'}
        text = found.body if found.status == 200 else b''
        answer = self.send('PUT', path, text + f'{token} '.encode(), guard)
        fine = answer.status == 204
        if not fine:  # a repeated write finds its own version
            fine = token.encode() in self.send('GET', path).body.split()
        with self.world.lock:
            (self.world.written if fine else self.world.refused)[record].add(token)
        time.sleep(self.rng.uniform(0, 0.05))


class Taker(Actor):
    """Takes from a stock, and gives some back."""

    def step(self):
        claim = f'{self.nth}-{self.rng.getrandbits(40):x}'
        path = f'/v1/stocks/storm/claims/{claim}'
        self.world.taken[claim] = None
        answer = self.send('PUT', path, {'amount': 1})
        got = answer.status in (200, 201)
        self.world.taken[claim] = got
        if got:
            used = answer.json.get('used') or 0
            with self.world.lock:
                self.world.most_used = max(self.world.most_used, used)
        if got and self.rng.random() < 0.9:
            time.sleep(self.rng.uniform(0, 0.2))
            self.world.taken[claim] = None
            if self.send('DELETE', path).status in (200, 412):
                self.world.taken[claim] = False
        time.sleep(self.rng.uniform(0, 0.05))


class Adder(Actor):
    """Adds tasks.  One without an answer may exist, or not: it is not repeated, since it may be done already."""

    def step(self):
        payload = f'{self.nth}-{self.rng.getrandbits(60):x}'
        try:
            answer = self.send('POST', '/v1/kinds/storm/tasks', {'payload': payload}, tries=1)
            (self.world.added if answer.status == 201 else self.world.maybe_added).add(payload)
        except Unknown:
            self.world.maybe_added.add(payload)
        time.sleep(self.rng.uniform(0, 0.1))


class Worker(Actor):
    def step(self, wait=1000):
        answer = self.send('POST', '/v1/kinds/storm/claims', {'wait': wait, 'timeout': '2s', 'limit': 3}, tries=1)
        tasks = answer.json['tasks']
        time.sleep(self.rng.choice([0, 0, 0, 0.2, 2.5]))
        for task in tasks:
            end = {'task': task['task'], 'fence': task['fence'], 'outcome': 'done'}
            try:
                self.finish(task['payload'], end)
            except Unknown:
                self.world.doubtful.append((task['payload'], end))
        return len(tasks)

    def finish(self, payload, end):
        answer = self.send('POST', '/v1/kinds/storm/results', {'tasks': [end]})
        status = answer.json['tasks'][0]['status']
        self.world.count(f'end {status}')
        if status == 'OK':
            with self.world.lock:
                self.world.done[payload] += 1


ACTORS = [Holder] * 10 + [Writer] * 4 + [Taker] * 6 + [Adder] * 2 + [Worker] * 4


def fail_things(world, lasting, killed, proxy):
    """Until the end: kills one daemon, stops the other one, loses answers of its clients."""
    rng = random.Random(world.seed)
    patterns = ['POST\\s', 'PUT\\s', 'PATCH\\s', 'DELETE\\s', '/results', '/claims/', '/seal', '/v1/leases']
    while not world.end:
        time.sleep(rng.uniform(0.1, 0.6))
        if world.pause:
            proxy.say('pass')
            continue
        how = rng.choice(['kill', 'stop', 'lose', 'lose', 'lose', 'cut', 'stall', 'late'])
        world.count(how)
        if how == 'kill':
            killed.stop(signal.SIGKILL)
            time.sleep(rng.uniform(0, 0.5))
            killed.start()
        elif how == 'stop':
            lasting.process.send_signal(signal.SIGSTOP)
            time.sleep(rng.choice([0.3, 1, 2.5]))
            lasting.process.send_signal(signal.SIGCONT)
        elif how == 'lose':
            proxy.say(f'cut-after-request times={rng.randrange(1, 6)} {rng.choice(patterns)}')
        elif how == 'late':
            proxy.say(f'orphan-request {rng.choice(patterns)} {rng.randrange(50, 1500)}')
        elif how == 'stall':
            proxy.say('stall')
            time.sleep(rng.uniform(0.2, 1.5))
            proxy.say('pass')
        else:
            proxy.say('cut')
    proxy.say('pass')


def measure(world, daemon, most=0):
    """Descriptors and memory while nothing happens, and no client is connected.  A connection of the store is closed when
    it was idle for some seconds: if there are more than `most` descriptors, they may become fewer."""
    world.pause = True
    calm = wait_until(lambda: world.busy == 0)
    time.sleep(2)
    if most:
        wait_until(lambda: daemon.descriptors() <= most)
    seen = daemon.descriptors(), daemon.memory_kib()
    world.pause = False
    return seen if calm else (0, 0)


# ---- What is compared ----

def check_leases(world):
    overlaps, falls = [], []
    for name, beliefs in world.held.items():
        beliefs.sort()
        for one, next_ in zip(beliefs, beliefs[1:]):
            if one[1] > next_[0]:
                overlaps.append((name, one, next_))
            if one[2] >= next_[2]:
                falls.append((name, one, next_))
    total = sum(map(len, world.held.values()))
    check(f'no name had two holders at once ({total} leases)', not overlaps and total > 0, overlaps)
    check('and its fences grew', not falls, falls)


def check_records(world, actor):
    lost, twice, wrong, total = [], [], [], 0
    for record in set(world.written) | set(world.refused):
        answer = actor.send('GET', f'/v1/records/{record}')
        tokens = collections.Counter(answer.body.decode().split() if answer.status == 200 else [])
        total += len(world.written[record])
        lost += [(record, token) for token in world.written[record] if token not in tokens]
        wrong += [(record, token) for token in world.refused[record] if token in tokens]
        twice += [(record, token) for token, times in tokens.items() if times > 1]
    check(f'each acknowledged write is in its record ({total})', not lost and total > 0, lost)
    check('none of them twice', not twice, twice)
    check('and no refused one', not wrong, wrong)


def check_stock(world, actor):
    for claim, got in list(world.taken.items()):
        if got is None:  # repeating the request resolves it
            world.taken[claim] = actor.send('PUT', f'/v1/stocks/storm/claims/{claim}', {'amount': 1}).status in (200, 201)
    used = actor.send('GET', '/v1/stocks/storm').json['used']
    believed = sum(got is True for got in world.taken.values())
    check(f'what is used of the stock is what was taken ({used} by {len(world.taken)} claims)', used == believed, used, believed)
    check('and never was more than the limit', world.most_used <= LIMIT and used <= LIMIT, world.most_used)


def check_tasks(world, worker):
    for payload, how in world.doubtful:
        worker.finish(payload, how)
    by = time.monotonic() + PATIENCE_S
    while not world.added <= set(world.done) and time.monotonic() < by:
        worker.step()
    while worker.step(wait=2500):  # those of claims that timed out
        pass
    missing = [payload for payload in world.added if not world.done[payload]]
    twice = [(payload, times) for payload, times in world.done.items() if times > 1]
    unknown = set(world.done) - world.added - world.maybe_added
    check(f'each acknowledged task is done ({len(world.added)})', not missing and world.added, missing)
    check('none of them twice', not twice and not unknown, twice, unknown)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('dibs')
    parser.add_argument('proxy')
    parser.add_argument('store', nargs='?')
    parser.add_argument('--seconds', type=float, default=15)
    parser.add_argument('--seed', type=int, default=random.randrange(1 << 30))
    args = parser.parse_args()
    print(f'# seed {args.seed}', flush=True)
    with tempfile.TemporaryDirectory(prefix='dibs-storm-') as folder, contextlib.ExitStack() as ends:
        store = args.store or f'sqlite://{folder}/dibs.db'
        lasting, killed = [Daemon(args.dibs, store, folder=folder).start().wait_ready() for _ in range(2)]
        proxy = Proxy(args.proxy, lasting.port)
        ends.callback(lambda: [killed.process.kill(), lasting.process.kill(), proxy.stop()])
        world = World([proxy.port, killed.port], args.seed)
        judge = Worker(World([lasting.port], args.seed), 'judge')
        world.leases_only = judge.client.once(0, 'GET', '/v1/stocks/storm').status == 501
        if not world.leases_only:
            judge.send('PUT', '/v1/stocks/storm', {'limit': LIMIT})
        actors = [actor for actor in ACTORS if actor is Holder or not world.leases_only]
        threads = [threading.Thread(target=actor(world, nth).run) for nth, actor in enumerate(actors)]
        threads.append(threading.Thread(target=fail_things, args=(world, lasting, killed, proxy)))
        for thread in threads:
            thread.start()
        time.sleep(args.seconds * WARM)
        before = measure(world, lasting)
        time.sleep(args.seconds * (1 - WARM))
        after = measure(world, lasting, before[0] + IDLE_FDS)
        world.end = True
        for thread in threads:
            thread.join()
        proxy.say('pass')
        judge.world = world
        check_leases(world)
        if not world.leases_only:
            check_records(world, judge)
            check_stock(world, judge)
            check_tasks(world, judge)
        check('no client got an answer that it should not get', not world.errors, *world.errors[:20])
        check('descriptors do not grow', after[0] <= before[0] + IDLE_FDS, before, after)
        check('nor does memory', after[1] <= before[1] + GROWTH_KIB, before, after)
        check('the daemons end with 0', lasting.stop() == 0 and killed.stop() == 0)
        check('and said nothing', not lasting.said() and not killed.said(), lasting.said(), killed.said())
        print('#', dict(world.counts), 'descriptors, KiB:', before, after)
    return end()


if __name__ == '__main__':
    sys.exit(main())

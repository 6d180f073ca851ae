# SPDX-License-Identifier: MIT
"""Thousands of clients of one daemon: connections, requests that wait for one name, requests that wait for tasks.

usage: many_test.py DIBS [STORE] [--waiters N] [--connections N] [--speed] [--figures FILE]

Checks that all are served, that those that wait for a name are served in their order, that a waiting request costs little
memory, and that nothing is left when the clients are gone.  --speed: also the time from one holder to the next.  --figures:
writes what it measured to this file, as JSON, and judges none of it; bench/serve/run reads it.  There are fewer clients if the
limit of descriptors is lower.
"""
import argparse
import contextlib
import json
import os
import resource
import select
import socket
import sys
import tempfile
import time

from checks import PATIENCE_S, check, end, wait_until
from daemon import Client, Daemon

WAITER_KIB = 10    # memory of a waiting request with its connection, at most
HAND_OFF_MS = 20   # from one holder's release to the next one's grant, at most, of 99 in 100
SHARD = 512        # connections of one daemon of libmicrohttpd (SHARD_CONNECTIONS of src/serve/server.h), whose descriptor is kept
COMMITS = 1000
BATCH = 500        # requests that are sent together: their order among themselves is the daemon's
SOURCE_PORTS = 15000  # connections from one address, at most
IP_BIND_ADDRESS_NO_PORT = 24

figures = {}


def raise_limit(wanted):
    """The descriptors that this process and its daemon may have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, wanted), max(hard, wanted)))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Connections:
    """Many connections in one thread; `got` is called with the number of each that has a whole answer."""

    def __init__(self, port):
        self.port, self.sockets, self.buffers, self.epoll = port, [], [], select.epoll()
        self.numbers = {}

    def add(self):
        nth = len(self.sockets)
        s = socket.socket()
        s.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.bind((f'127.0.0.{2 + nth // SOURCE_PORTS}', 0))
        s.settimeout(PATIENCE_S)
        s.connect(('127.0.0.1', self.port))
        self.sockets.append(s)
        self.buffers.append(b'')
        self.numbers[s.fileno()] = nth
        self.epoll.register(s.fileno(), select.EPOLLIN)
        return nth

    def send(self, nth, method, path, body=None, header=''):
        text = b'' if body is None else json.dumps(body).encode()
        head = f'{method} {path} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: {len(text)}\r\n\r\n'
        self.sockets[nth].sendall(head.encode() + text)

    def answers(self, seconds):
        """Yields (number, status, body) of what comes within this time; status 0: the connection ended."""
        by = time.monotonic() + seconds
        while (left := by - time.monotonic()) > 0:
            for fd, _ in self.epoll.poll(left, 256):
                nth = self.numbers[fd]
                data = self.sockets[nth].recv(65536)
                self.buffers[nth] += data
                head, separator, body = self.buffers[nth].partition(b'\r\n\r\n')
                if not data:
                    self.epoll.unregister(fd)
                    yield nth, 0, b''
                elif separator:
                    status = int(head[9:12])
                    length = next((int(line[15:]) for line in head.split(b'\r\n') if line.lower().startswith(b'content-length:')), 0)
                    if len(body) >= length:
                        self.buffers[nth] = body[length:]
                        yield nth, status, body[:length]

    def close(self):
        for s in self.sockets:
            s.close()
        self.epoll.close()


def percentile(values, percent):
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def keep_figures(what, took, cpu_us):
    figures.update({f'{what}_p50_ms': percentile(took, 50), f'{what}_p99_ms': percentile(took, 99), f'{what}_cpu_us': cpu_us})


def leaves_none(daemon, base, most):
    """Are the descriptors of that many connections closed, but for those of the shards?"""
    return wait_until(lambda: daemon.descriptors() <= base + 4 + most // SHARD)


def test_connections(daemon, most):
    base = daemon.descriptors()
    many = Connections(daemon.port)
    for _ in range(most):
        many.send(many.add(), 'GET', '/healthz')
    statuses = {}
    for nth, status, _ in many.answers(PATIENCE_S):
        statuses[nth] = status
        if len(statuses) == most:
            break
    check(f'{most} connections are served', list(statuses.values()).count(200) == most, len(statuses), set(statuses.values()))
    check('and are open together', daemon.descriptors() > most, daemon.descriptors())
    many.close()
    check('no descriptor is left of them', leaves_none(daemon, base, most), base, daemon.descriptors())


def waiting(daemon, name):
    answer = Client([daemon.port]).once(0, 'GET', f'/v1/leases/{name}')
    return sum(one['state'] == 'waits' for one in answer.json['leases']) if answer.status == 200 else 0


def queue_up(daemon, name, most):
    """(connections that wait for the name, in their order of batches; the memory of each in KiB)."""
    many = Connections(daemon.port)
    before = daemon.memory_kib()
    for first in range(0, most, BATCH):
        for _ in range(first, min(first + BATCH, most)):
            many.send(many.add(), 'POST', f'/v1/leases/{name}', {'ttl': '60s', 'wait': '10m'})
        if not wait_until(lambda: waiting(daemon, name) == len(many.sockets)):
            raise SystemExit(f'Bail out! {waiting(daemon, name)} of {len(many.sockets)} wait')
    return many, (daemon.memory_kib() - before) / most


def hand_on(many, name, most):
    """Each releases when it is granted.  (their numbers in this order, ms from a release to the next grant)."""
    order, took, released = [], [], None
    for nth, status, body in many.answers(PATIENCE_S * 10):
        if status == 204:
            continue
        if released:
            took.append((time.monotonic() - released) * 1000)
        if status != 201:
            print(f'# answered {status}: {body.decode(errors="replace")}', flush=True)
            return order, took
        order.append(nth)
        if len(order) == most:
            break
        released = time.monotonic()
        many.send(nth, 'DELETE', f'/v1/leases/{name}', header=f"Dibs-Lease: {json.loads(body)['id']}\r\n")
    return order, took


def measure_commits(daemon):
    """One request after the other that the store commits, before anything waits: no hand-off can be faster."""
    client, took = Client([daemon.port]), []
    client.once(0, 'PUT', '/v1/stocks/commits', {'limit': COMMITS})
    for nth in range(COMMITS):
        answer = client.once(0, 'PUT', f'/v1/stocks/commits/claims/{nth}', {'amount': 1})
        if answer.status != 201:
            raise SystemExit(f'Bail out! a take was answered {answer.status}')
        took.append((answer.came - answer.sent) * 1000)
    client.close()
    keep_figures('commit', took, 0)


def test_waiters(daemon, most, judges, speed):
    held = Client([daemon.port]).once(0, 'POST', '/v1/leases/many', {'ttl': '10m'}).json
    base = daemon.descriptors()
    many, kib = queue_up(daemon, 'many', most)
    print(f'# {kib:.1f} KiB for each of {most} that wait', flush=True)
    if judges and most >= 1000:
        check('a waiting request costs little memory', kib < WAITER_KIB, kib)
    Client([daemon.port]).once(0, 'DELETE', '/v1/leases/many', headers={'Dibs-Lease': held['id']})
    cpu_us = daemon.cpu_us()
    order, took = hand_on(many, 'many', most)
    figures['waiting_kib'] = kib
    keep_figures('hand_off', took, (daemon.cpu_us() - cpu_us) / most)
    check(f'{most} that wait for one name get it', sorted(order) == list(range(most)), len(order))
    batches = [nth // BATCH for nth in order]
    check('those that came first, first', batches == sorted(batches), batches)
    text = f'p50 {percentile(took, 50):.2f} ms, p99 {percentile(took, 99):.2f} ms, most {max(took):.1f} ms'
    print(f'# from a release to the next grant: {text}', flush=True)
    if speed:
        check('the next one has it soon', percentile(took, 99) < HAND_OFF_MS, text)
    many.close()
    check('no descriptor is left of them', leaves_none(daemon, base, most), base, daemon.descriptors())


def test_leavers(daemon, most):
    """All that wait hang up; the next client gets the name as soon as it is released."""
    held = Client([daemon.port]).once(0, 'POST', '/v1/leases/left', {'ttl': '10m'}).json
    many, _ = queue_up(daemon, 'left', most)
    many.close()
    check(f'{most} that hang up leave the queue', wait_until(lambda: waiting(daemon, 'left') == 0), waiting(daemon, 'left'))
    Client([daemon.port]).once(0, 'DELETE', '/v1/leases/left', headers={'Dibs-Lease': held['id']})
    answer = Client([daemon.port]).once(0, 'POST', '/v1/leases/left', {'wait': '20s'})
    check('the next one gets the name', answer.status == 201, answer.status)


def test_tasks(daemon, most, speed):
    """All wait for tasks of one kind; each task goes to one of them."""
    many = Connections(daemon.port)
    before = daemon.memory_kib()
    for _ in range(most):
        many.send(many.add(), 'POST', '/v1/kinds/many/claims', {'wait': '10m', 'timeout': '10m'})
    client, took, got, cpu_us = Client([daemon.port]), [], [], daemon.cpu_us()
    for nth in range(min(most, 500)):  # one after the other
        began = time.monotonic()
        client.once(0, 'POST', '/v1/kinds/many/tasks', {'payload': str(nth)})
        for _, _, body in many.answers(PATIENCE_S):
            took.append((time.monotonic() - began) * 1000)
            got += [task['payload'] for task in json.loads(body)['tasks']]
            break
    kib = (daemon.memory_kib() - before) / most
    keep_figures('task', took, (daemon.cpu_us() - cpu_us) / len(took))
    tasks = [{'payload': str(nth)} for nth in range(len(got), most)]
    for first in range(0, len(tasks), 1000):
        client.once(0, 'POST', '/v1/kinds/many/tasks', {'tasks': tasks[first:first + 1000]})
    if tasks:
        for _, _, body in many.answers(PATIENCE_S * 5):
            got += [task['payload'] for task in json.loads(body)['tasks']]
            if len(got) == most:
                break
    check(f'{most} that wait for tasks get one each', sorted(map(int, got)) == list(range(most)), len(got), len(set(got)))
    text = f'p50 {percentile(took, 50):.2f} ms, p99 {percentile(took, 99):.2f} ms, {kib:.1f} KiB each'
    print(f'# from adding a task to its claim: {text}', flush=True)
    if speed:
        check('a task is claimed soon', percentile(took, 99) < HAND_OFF_MS and kib < WAITER_KIB, text)
    many.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('dibs')
    parser.add_argument('store', nargs='?')
    parser.add_argument('--waiters', type=int, default=1000)
    parser.add_argument('--connections', type=int, default=20000)
    parser.add_argument('--speed', action='store_true')
    parser.add_argument('--figures')
    args = parser.parse_args()
    os.environ.pop('MALLOC_PERTURB_', None)  # of meson: it writes to memory that nobody uses
    limit = raise_limit(2 * max(args.waiters, args.connections)) - 100
    args.waiters, args.connections = min(args.waiters, limit), min(args.connections, limit)
    with tempfile.TemporaryDirectory(prefix='dibs-many-') as folder:
        store = args.store or f'sqlite://{folder}/dibs.db'
        # Some more for the requests beside them.
        daemon = Daemon(args.dibs, store, '--idle', '600', '--connections', str(max(args.connections, args.waiters) + 100), folder=folder)
        daemon.start().wait_ready()
        try:
            if args.figures:
                measure_commits(daemon)
            test_waiters(daemon, args.waiters, not args.figures, args.speed)
            test_leavers(daemon, args.waiters // 4)
            test_tasks(daemon, args.waiters, args.speed)
            test_connections(daemon, args.connections)
            check('the daemon ends with 0', daemon.stop() == 0)
            check('and said nothing', not daemon.said(), daemon.said())
        finally:
            daemon.process.kill()
    if args.figures:
        with open(args.figures, 'w', encoding='utf-8') as f:
            json.dump({'waiters': args.waiters, **figures}, f)
    return end()


if __name__ == '__main__':
    sys.exit(main())

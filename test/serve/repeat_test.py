# SPDX-License-Identifier: MIT
"""A request for a lease is repeated at another daemon, while the first daemon still has the first one.

usage: repeat_test.py DIBS [STORE]

The first daemon is stopped when the client hangs up.  When it goes on, the wait is left or over: this must not end the
lease that the client has by the other daemon.
"""
import os
import signal
import sys
import tempfile
import threading
import time

from checks import check, end, wait_until
from daemon import Client, Daemon



def states(client, nth, name):
    answer = client.once(nth, 'GET', f'/v1/leases/{name}')
    return [one['state'] for one in answer.json['leases']] if answer.status == 200 else []


def repeat(first, second, name, wait, stop):
    """`stop`: what happens to the first daemon after the repeated request was granted."""
    client = Client([first.port, second.port])
    path, id_ = f'/v1/leases/{name}', os.urandom(16).hex()
    held = client.once(1, 'POST', path, {'ttl': '2m'}).json
    lost = Client([first.port])
    body = {'id': id_, 'ttl': '2m', 'wait': wait}
    thread = threading.Thread(target=lambda: send_and_ignore(lost, path, body))
    thread.start()
    wait_until(lambda: 'waits' in states(client, 1, name))
    first.process.send_signal(signal.SIGSTOP)
    lost.connections[0].sock.shutdown(2)
    thread.join()
    got = []
    thread = threading.Thread(target=lambda: got.append(Client([second.port]).once(0, 'POST', path, dict(body, wait='60s'))))
    thread.start()
    time.sleep(0.3)
    client.once(1, 'DELETE', path, headers={'Dibs-Lease': held['id']})
    thread.join()
    check(f'{name}: the repeated request is granted', got[0].status == 201, got[0].status, got[0].body)
    time.sleep(1)  # the shorter wait is over
    first.process.send_signal(signal.SIGCONT)
    stop()
    check(f'{name}: nobody else gets the name', client.once(1, 'POST', path, {'wait': '1s'}).status == 409)
    check(f'{name}: the client still has it', client.once(1, 'PATCH', path, {}, {'Dibs-Lease': id_}).status == 200)
    client.once(1, 'DELETE', path, headers={'Dibs-Lease': id_})


def send_and_ignore(client, path, body):
    try:
        client.once(0, 'POST', path, body)
    except OSError:
        pass


def main():
    dibs = sys.argv[1]
    with tempfile.TemporaryDirectory(prefix='dibs-repeat-') as folder:
        store = sys.argv[2] if len(sys.argv) > 2 else f'sqlite://{folder}/dibs.db'
        first, second = [Daemon(dibs, store, folder=folder).start().wait_ready() for _ in range(2)]
        try:
            repeat(first, second, 'left', '60s', lambda: time.sleep(1))
            repeat(first, second, 'over', '1s', lambda: time.sleep(1))
            repeat(first, second, 'stopped', '60s', first.stop)
        finally:
            first.process.kill()
            second.process.kill()
    return end()


if __name__ == '__main__':
    sys.exit(main())

# SPDX-License-Identifier: MIT
"""What a client of dibs serve may cost: slow, huge, many and half requests.

usage: limits_test.py DIBS
"""
import contextlib
import json
import os
import resource
import select
import socket
import sys
import time

import auth_test
import serve_test as t
from checks import PATIENCE_S, check, end, wait_until
from auth_test import bearer, new_token, raw, said, status_of, write_tokens
from serve_test import Server, send


def client_of(server, receive_bytes=None):
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(PATIENCE_S)
    client.connect(('127.0.0.1', server.port))
    return client


def sockets_of(server):
    folder = f'/proc/{server.process.pid}/fd'
    count = 0
    for fd in os.listdir(folder):
        with contextlib.suppress(OSError):
            count += os.readlink(f'{folder}/{fd}').startswith('socket:')
    return count


def is_closed(client):
    """Within the patience; what comes before is dropped."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def drip(client, text, pause_s=0.2):
    """Byte by byte.  How many were sent before the server closed the connection."""
    for i, byte in enumerate(text):
        try:
            client.sendall(bytes([byte]))
            client.settimeout(pause_s)
            if client.recv(65536) == b'':
                return i
            client.settimeout(PATIENCE_S)
        except TimeoutError:
            continue
        except OSError:
            return i
    return len(text)


def test_slow_clients():
    s = Server('--idle', '1', '--read', '1', '--send', '2')
    before = sockets_of(s)
    head = b'POST /v1/leases/slow HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n'
    for what, text in [('the request line', b'GET /v1/leases/' + b'x' * 200), ('the headers', head + b'X: ' + b'y' * 200),
                       ('the body', head + b'\r\n' + b' ' * 999)]:
        with contextlib.closing(client_of(s)) as client:
            if what != 'the request line':
                client.sendall(text[:-199])
                text = text[-199:]
            began = time.monotonic()
            sent = drip(client, text)
            check(f'a client that is slow with {what} is cut', sent < len(text), sent, time.monotonic() - began)
    with contextlib.closing(client_of(s)) as client:
        client.sendall(head + b'\r\n{')
        check('one that stops in its body is cut', is_closed(client))
    with contextlib.closing(client_of(s)) as client:
        client.sendall(b'GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n')
        check('one without a second request', b' 200 ' in client.recv(65536) and is_closed(client))
    with contextlib.closing(client_of(s)) as client:
        client.sendall(b'GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n' + head[:30])
        check('one with half of a second request', b' 200 ' in client.recv(65536) and is_closed(client))
    check('no socket is left', wait_until(lambda: sockets_of(s) <= before), sockets_of(s), before)
    status = s.call('POST', '/v1/leases/patient', {'ttl': '1m'})[0]
    check('a request that waits has no such deadline', status == 201 and
          s.call('POST', '/v1/leases/patient', {'wait': '4s'})[0] == 409)
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def test_readers_of_nothing():
    s = Server('--send', '1', '--idle', '1')
    before = sockets_of(s)
    check('a large record', s.call('PUT', '/v1/records/large?unchecked=true', b'x' * (1 << 20))[0] in (201, 204))
    client = client_of(s, 4096)
    client.sendall(b'GET /v1/records/large HTTP/1.1\r\nHost: h\r\n\r\n' * 20)
    check('a client that reads nothing is cut', wait_until(lambda: sockets_of(s) <= before), sockets_of(s), before)
    client.close()
    client = client_of(s, 4096)
    client.sendall(b'GET /v1/records/large HTTP/1.1\r\nHost: h\r\n\r\n' * 20)
    got = 0
    with contextlib.suppress(OSError):
        while part := client.recv(2048):
            got += len(part)
            time.sleep(0.05)
    check('one that reads a little from time to time, too', got < 20 << 20, got)
    client.close()
    client = client_of(s, 4096)
    client.setblocking(False)
    requests = b'GET /web/text.js HTTP/1.1\r\nHost: h\r\n\r\n' * 2000
    closed, by = False, time.monotonic() + PATIENCE_S / 4
    while not closed and time.monotonic() < by:  # some bytes now and then: --idle does not see it
        time.sleep(0.05)
        try:
            requests = requests[client.send(requests):]
        except BlockingIOError:
            pass
        except OSError:
            closed = True
        try:
            closed = closed or client.recv(256) == b''
        except BlockingIOError:
            pass
        except OSError:
            closed = True
    check('the same with the files of the dashboard', closed)
    client.close()
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def test_half_closed():
    s = Server('--idle', '1')
    before = sockets_of(s)
    with contextlib.closing(client_of(s)) as client:
        client.sendall(b'GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n')
        client.shutdown(socket.SHUT_WR)
        check('a client that sends no more gets its answer', b' 200 ' in client.recv(65536))
    with contextlib.closing(client_of(s)) as client:
        client.sendall(b'POST /v1/leases/x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{')
        client.shutdown(socket.SHUT_WR)
        check('half of a request gets none', is_closed(client))
    s.call('POST', '/v1/leases/x', {'ttl': '1m'})
    with contextlib.closing(client_of(s)) as client:
        client.sendall(b'POST /v1/leases/x HTTP/1.1\r\nHost: h\r\nContent-Length: 15\r\n\r\n{"wait": "20s"}')
        wait_until(lambda: len(s.call('GET', '/v1/leases/x')[2]['leases']) == 2)
        client.shutdown(socket.SHUT_WR)
        check('one that waits and sends no more leaves the queue',
              wait_until(lambda: len(s.call('GET', '/v1/leases/x')[2]['leases']) == 1))
    check('no socket is left', wait_until(lambda: sockets_of(s) <= before), sockets_of(s), before)
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def test_huge():
    s = Server('--header', '2048', '--body', '4096')
    for what, text in [('a long path', 'GET /v1/leases/' + 'x' * 100000 + ' HTTP/1.1\r\nHost: h\r\n\r\n'),
                       ('a long header', 'GET /healthz HTTP/1.1\r\nHost: h\r\nX: ' + 'y' * 100000 + '\r\n\r\n'),
                       ('many headers', 'GET /healthz HTTP/1.1\r\nHost: h\r\n' + 'X: y\r\n' * 20000 + '\r\n')]:
        got = b''
        with contextlib.suppress(OSError):
            got = raw(s, text)
        check(f'{what} is refused', got == b'' or status_of(got) in (400, 413, 414, 431), got[:100])
    check('a body of 4 KiB is read', s.call('PUT', '/v1/records/b?unchecked=true', b'x' * 4096)[0] in (201, 204))
    status, _, body = s.call('PUT', '/v1/records/b?unchecked=true', b'x' * 4097)
    check('a larger one is 413, and names the option', status == 413 and '--body' in body['detail'], status, body)
    got = raw(s, 'PUT /v1/records/b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n' +
              ('400\r\n' + 'x' * 1024 + '\r\n') * 5 + '0\r\n\r\n')
    check('also in chunks', status_of(got) == 413 and b'--body' in got, got[:100])
    for length in ('-1', '99999999999999999999999', 'x', '1, 2', '0x10'):
        got = b''
        with contextlib.suppress(OSError):
            got = raw(s, f'PUT /v1/records/b HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\nConnection: close\r\n\r\nx', 5)
        check(f'Content-Length: {length} is refused', got == b'' or status_of(got) in (400, 413), got[:100])
    pipeline = b'GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n' * 500
    with contextlib.closing(client_of(s)) as client:
        client.sendall(pipeline + b'GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n')
        got = b''
        while part := client.recv(65536):
            got += part
    check('a pipeline of 501 requests is answered in order', got.count(b'HTTP/1.1 200') == 501, got.count(b'HTTP/1.1 200'))
    check('the server lives', s.call('GET', '/healthz')[0] == 200)
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def head_of(size, lines=1):
    """A request of this size; `lines` headers fill it."""
    text = 'GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n'
    fill = size - len(text) - 2 - 5 * lines
    return text + ''.join(f'X: {"y" * (fill // lines + (i < fill % lines))}\r\n' for i in range(lines)) + '\r\n'


def test_heads():
    s = Server()
    for size, status in [(8191, 200), (8192, 200), (8193, 431), (9000, 431), (12000, 431), (20000, 431)]:
        text = head_of(size)
        got = raw(s, text)
        check(f'headers of {len(text)} bytes are answered {status}', len(text) == size and status_of(got) == status, got[:200])
    got = b''
    with contextlib.suppress(OSError):  # its connection may be closed while it sends
        got = raw(s, head_of(1 << 20))
    check('1 MiB is refused', got == b'' or status_of(got) == 431, got[:200])
    got = raw(s, head_of(9000))
    check('the answer is a problem that names the limit', b'/problems/headers-too-large' in got and b'takes 8192' in got and
          b'--header' in got, got)
    check('126 headers are read', status_of(raw(s, head_of(8192, 126))) == 200)
    check('127 are too many', status_of(raw(s, head_of(8192, 127))) == 431)
    check('a path that is too long is 414', status_of(raw(s, f'GET /{"x" * 8192} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n')) == 414)
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def test_rate():
    (one, first), (two, second) = new_token('one'), new_token('two')
    write_tokens(first, second)
    s = Server('--tokens', auth_test.TOKENS, '--rate', '5')

    def statuses(secret, count):
        return [s.call('GET', '/v1/leases/nobody', None, bearer(secret))[0] for _ in range(count)]

    got = statuses(one, 50)
    check('a token has its requests a second', got[:5] == [404] * 5 and 429 in got, got)
    check('the other has its own', statuses(two, 5) == [404] * 5)
    status, headers, body = 0, {}, {}
    while status != 429:
        status, headers, body = s.call('GET', '/v1/leases/nobody', None, bearer(one))
    check('429 with Retry-After', int(headers['retry-after']) >= 1 and body['type'] == '/problems/rate' and
          '--rate' in body['detail'], headers, body)
    check('health has no limit', all(s.call('GET', '/healthz')[0] == 200 for _ in range(20)))
    check('after a while it has some again', wait_until(lambda: statuses(one, 1) == [404]))
    s.process.terminate()
    s.process.wait(PATIENCE_S)
    s = Server('--rate', '5')
    got = [s.call('GET', '/v1/leases/nobody')[0] for _ in range(50)]
    check('without tokens all clients share it', got[:5] == [404] * 5 and 429 in got, got)
    s.process.terminate()
    s.process.wait(PATIENCE_S)


def test_overload():
    s = Server('--requests', '3', '--threads', '1')
    check('a lease', s.call('POST', '/v1/leases/o', {'ttl': '1m'})[0] == 201)
    with t.blocked_store():
        blocked = [send(s, 'POST', f'/v1/kinds/k{i}/tasks', {}) for i in range(3)]
        status = headers = body = None

        def refused():
            nonlocal status, headers, body
            # 400 as long as less run: such a request never waits for the store.
            status, headers, body = s.call('POST', '/v1/kinds/k/tasks', 'no JSON')
            return status == 503
        check('503 when as many run as may', wait_until(refused), status)
        check('with Retry-After, and the option', headers and int(headers['retry-after']) >= 1 and '--requests' in body['detail'],
              headers, body)
        check('health is answered', s.call('GET', '/healthz')[0] == 200)
    check('those that ran are done', [c.getresponse().status for c in blocked] == [201] * 3)
    check('afterwards it takes requests', wait_until(lambda: s.call('POST', '/v1/kinds/k/tasks', {})[0] == 201))
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def test_bodies():
    s = Server('--bodies', '1', '--body', '1000000')
    part = b'PUT /v1/records/x?unchecked=true HTTP/1.1\r\nHost: h\r\nContent-Length: 700000\r\n\r\n' + b'x' * 650000
    with contextlib.closing(client_of(s)) as first:
        first.sendall(part)
        for _ in range(50):  # each answer is a round of the loop, which reads what has come from the first
            s.call('GET', '/healthz')
        status, headers, body = s.call('PUT', '/v1/records/y?unchecked=true', b'y' * 600000)
        check('503 when bodies have their memory', status == 503 and body['type'] == '/problems/overload' and
              headers['retry-after'] and '--bodies' in body['detail'], status, body)
        got = raw(s, b'PUT /v1/records/y?unchecked=true HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n' +
                  (b'10000\r\n' + b'y' * 65536 + b'\r\n') * 9 + b'0\r\n\r\n')
        check('also in chunks', status_of(got) == 503, got[:100])
        check('a small one is read', s.call('PUT', '/v1/records/y?unchecked=true', b'y' * 100)[0] in (201, 204))
        first.sendall(b'x' * 50000)
        got = first.recv(65536)
        check('the large one is done', status_of(got) in (201, 204), got)
    check('its memory is free again', s.call('PUT', '/v1/records/y?unchecked=true', b'y' * 600000)[0] in (201, 204))
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


HEALTH = b'GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n'


def client_at(path):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE_S)
    client.connect(path)
    return client


def is_served(client, patience_s):
    client.settimeout(patience_s)
    try:
        return b' 200 ' in client.recv(65536)
    except OSError:
        return False


def test_connections():
    """The limit is that of both addresses together."""
    path = f'{t.FOLDER}/limits.sock'
    s = Server('--connections', '4', '--listen', f'unix:{path}')
    before = s.call('GET', '/healthz')[0]
    held = [client_of(s), client_of(s), client_at(path), client_at(path)]
    for client in held:
        client.sendall(HEALTH)
    check('as many connections as may be are served', before == 200 and all(is_served(client, PATIENCE_S) for client in held))
    more = [client_of(s), client_at(path)]
    for client in more:
        client.sendall(HEALTH)
    check('more are not, at either address', not is_served(more[0], 1) and not is_served(more[1], 1))
    held.pop(0).close()
    check('until another one ends', wait_until(lambda: is_served(more[0], 0.1) or is_served(more[1], 0.1)))
    for client in held + more:
        client.close()
    check('afterwards the daemon takes connections', s.call('GET', '/healthz')[0] == 200)
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def test_descriptors():
    """A daemon that has no descriptor for a connection takes it when it has one."""
    s = Server(limits=[(resource.RLIMIT_NOFILE, 40)])
    clients = [client_of(s) for _ in range(60)]
    for client in clients:
        client.sendall(HEALTH)
    served = []

    def end_served():
        for client in clients[:]:
            if is_served(client, 0.01):
                served.append(client)
                clients.remove(client)
                client.close()
        return not clients
    check('all are served, one after another', wait_until(end_served), len(served), said(s))
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def test_waiters():
    s = Server('--waiters', '1')
    s.call('POST', '/v1/leases/w', {'ttl': '1m'})
    waiting = send(s, 'POST', '/v1/leases/w', {'wait': '10m'})
    wait_until(lambda: len(s.call('GET', '/v1/leases/w')[2]['leases']) == 2)
    for path in ('/v1/leases/w', '/v1/kinds/none/claims'):
        status, headers, body = s.call('POST', path, {'wait': '10m'})
        check(f'more than --waiters are 503: {path}', status == 503 and body['type'] == '/problems/overload' and
              '--waiters' in body['detail'] and headers['retry-after'], status, body)
    waiting.close()
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def test_numbers():
    """The limits of lists, events and the threads' queue, each with its option."""
    s = Server('--event-clients', '2', '--watched-lists', '3', '--page', '5', '--queue', '1', '--threads', '1')

    def is_overload(status, body, option):
        return status == 503 and body['type'] == '/problems/overload' and option in body['detail']

    for i in range(7):
        s.call('PUT', f'/v1/stocks/page-{i}', {'limit': 1})
    status, _, body = s.call('GET', '/v1/stocks?prefix=page-&limit=1000')
    check('a page has no more than --page', status == 200 and len(body['stocks']) == 5 and body['next'] == 'page-4', body)
    more = s.call('GET', '/v1/stocks?prefix=page-&after=page-4')[2]
    check('the next page has the rest', len(more['stocks']) == 2 and more['next'] is None, more)
    lists = '%20'.join(f'/v1/stocks?prefix={i}' for i in range(4))
    status, _, body = s.call('GET', f'/v1/events?watch={lists}')
    check('more than --watched-lists are 503', is_overload(status, body, '--watched-lists'), status, body)
    streams = []
    for _ in range(2):
        streams.append(send(s, 'GET', '/v1/events?watch=/v1/stocks'))
        check('a client of events is served', streams[-1].getresponse().status == 200)
    status, _, body = s.call('GET', '/v1/events?watch=/v1/stocks')
    check('more than --event-clients are 503', is_overload(status, body, '--event-clients'), status, body)
    for stream in streams:
        stream.close()
    with t.blocked_store():
        blocked = [send(s, 'POST', '/v1/kinds/k/tasks', {}) for _ in range(3)]
        ready = select.select([one.sock for one in blocked], [], [], PATIENCE_S)[0]
        refused = [one.getresponse() for one in blocked if one.sock in ready]
        check('more than --queue are 503', refused and
              all(is_overload(one.status, json.load(one), '--queue') and int(one.headers['retry-after']) >= 1 for one in refused))
        waiting = [one for one in blocked if one.sock not in ready]
    check('those before are done', sorted(one.getresponse().status for one in waiting)[0] == 201)
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0, said(s))


def main():
    for test in (test_slow_clients, test_readers_of_nothing, test_half_closed, test_huge, test_heads, test_rate, test_overload, test_bodies,
                 test_connections, test_descriptors, test_waiters, test_numbers):
        test()
    return end()


if __name__ == '__main__':
    sys.exit(main())

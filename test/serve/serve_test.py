# SPDX-License-Identifier: MIT
"""dibs serve as its clients see it: leases, records, stocks and tasks over HTTP, on a real store.

usage: serve_test.py DIBS [URI]
"""
import atexit
import contextlib
import errno
import http.client
import json
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.parse

from checks import PATIENCE_S, begin, check, end, free_port, temporary_folder, wait_until

DIBS = sys.argv[1]
FOLDER = temporary_folder('dibs-serve-')
STORE = sys.argv[2] if len(sys.argv) > 2 else f'sqlite://{FOLDER}/dibs.db'
LEASES_ONLY = STORE.startswith('redis')
SQLITE = STORE.removeprefix('sqlite://') if STORE.startswith('sqlite://') else None
POOL = 1024  # requests that the daemon's threads have taken over, at most

resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)

class Server:
    """A daemon of its own process."""

    problems = set()  # the types of all that were answered

    def __init__(self, *options, store=STORE, limits=(), prefix=()):
        self.port = free_port()
        self.errors = open(f'{FOLDER}/errors-{self.port}', 'w+', encoding='utf-8')
        self.process = subprocess.Popen(
            [*prefix, DIBS, 'serve', '--store', store, '--listen', f'127.0.0.1:{self.port}', *options],
            stderr=self.errors, stdout=self.errors, stdin=subprocess.DEVNULL,
            preexec_fn=lambda: [resource.setrlimit(what, (most, most)) for what, most in limits])
        atexit.register(self.process.kill)
        by = time.monotonic() + PATIENCE_S
        while time.monotonic() < by:
            try:
                if self.call('GET', '/healthz')[0] == 200:
                    return
            except OSError:
                time.sleep(0.02)
        self.errors.seek(0)
        raise SystemExit(f'Bail out! the server does not answer: {self.errors.read()}')

    def connect(self, timeout=PATIENCE_S):
        return http.client.HTTPConnection('127.0.0.1', self.port, timeout=timeout)

    def call(self, method, path, body=None, headers=None, connection=None):
        """(status, headers, body); JSON is decoded."""
        own = connection or self.connect()
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        own.request(method, path, body=body, headers=headers or {})
        answer = own.getresponse()
        data = answer.read()
        found = {k.lower(): v for k, v in answer.getheaders()}
        if not connection:
            own.close()
        if 'json' in found.get('content-type', ''):
            data = json.loads(data) if data else None
        if found.get('content-type') == 'application/problem+json':
            self.problems.add(data['type'])
        return answer.status, found, data

    def waiting(self, secret):
        """How many requests and streams wait."""
        _, _, body = self.call('GET', '/v1/metrics/http.requests.waiting', None, {'Authorization': f'Bearer {secret}'})
        return body['samples'][0]['value']

    def stop(self, signo=signal.SIGTERM):
        self.process.send_signal(signo)
        code = self.process.wait(PATIENCE_S)
        self.errors.seek(0)
        said = self.errors.read()
        said = ''.join(line for line in said.splitlines(True) if not line.startswith('dibs: {"action":'))
        check('it said nothing but where it serves, and actions', re.fullmatch(f'dibs: serving .* at 127.0.0.1:{self.port}\n', said), said)
        return code


def name_path(kind, name, *rest):
    return f"/v1/{kind}/{urllib.parse.quote(name, safe='')}" + ''.join(rest)


@contextlib.contextmanager
def blocked_store(path=SQLITE):
    """Writes to this SQLite store wait."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S)) as other:
        other.execute('BEGIN IMMEDIATE')
        yield other
        if other.in_transaction:
            other.execute('ROLLBACK')


def send(server, method, path, body=None, headers=None):
    """A connection with a request whose answer nobody has read."""
    connection = server.connect()
    connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers or {})
    return connection


def states_of(server, name):
    status, _, body = server.call('GET', name_path('leases', name))
    return [one['state'] for one in body['leases']] if status == 200 else []


# ---- Leases ----

def test_lease(s):
    status, headers, body = s.call('POST', '/v1/leases/a', {'ttl': '20s', 'owner': 'ann'})
    check('a lease is acquired', status == 201 and body['name'] == 'a' and 15000 < body['left_ms'] <= 20000, status, body)
    check('its id and fence are headers, too', headers.get('dibs-lease') == body['id'], headers)
    id_, fence = body['id'], body['fence']
    status, headers, body = s.call('POST', '/v1/leases/a')
    check('a second one is refused with 409', status == 409 and body['type'] == '/problems/held', status, body)
    check('as problem+json with Retry-After',
          headers['content-type'] == 'application/problem+json' and 'retry-after' in headers, headers)
    status, _, body = s.call('GET', '/v1/leases/a')
    check('GET shows the holder', status == 200 and body['leases'][0]['owner'] == 'ann', body)
    status, _, body = s.call('PATCH', '/v1/leases/a', {'ttl': '1m'}, {'Dibs-Lease': id_})
    check('the id alone renews it', status == 200 and body['left_ms'] > 50000 and body['fence'] == fence, status, body)
    status, _, body = s.call('DELETE', '/v1/leases/a', headers={'Dibs-Lease': '0' * 32})
    check('another id does not release it: 410', status == 410 and states_of(s, 'a') == ['holds'], status, body)
    status, _, body = s.call('DELETE', '/v1/leases/a', headers={'Dibs-Lease': id_})
    check('the id releases it: 204', status == 204 and states_of(s, 'a') == [], status, body)
    status, _, body = s.call('DELETE', '/v1/leases/a', headers={'Dibs-Lease': id_})
    check('a second release answers 410', status == 410, status, body)


def test_names(s):
    for name in ['a/b', 'é 1', '100%', '%2F', '.', '..', 'x?y#z', 'n' * 255]:
        status, headers, body = s.call('POST', name_path('leases', name))
        fine = status == 201 and body['name'] == name
        if fine:
            fine = s.call('DELETE', name_path('leases', name), headers={'Dibs-Lease': body['id']})[0] == 204
        check(f'the name {name[:8]!r} is kept byte by byte', fine, status, body)
    for path in ['/v1/leases/', '/v1/leases/a%00b', '/v1/leases/%ff', '/v1/leases/%0a', '/v1/leases/' + 'n' * 256,
                 '/v1/leases/%zz', '/v1/leases/%', '/v1/leases/a/b']:
        status, _, body = s.call('POST', path)
        check(f'{path[:20]} is refused', status in (400, 404) and body['detail'], status, body)


def test_repeats(s):
    id_ = '%032x' % 77
    first = s.call('POST', '/v1/leases/r', {'id': id_})[2]
    status, _, second = s.call('POST', '/v1/leases/r', {'id': id_.upper()})
    check('a POST with the same id finds its own grant', status == 201 and second['fence'] == first['fence'], second)
    s.call('DELETE', '/v1/leases/r', headers={'Dibs-Lease': id_})
    key = {'Idempotency-Key': 'order 7'}
    first = s.call('POST', '/v1/leases/r', headers=key)[2]
    status, _, second = s.call('POST', '/v1/leases/r', headers=key)
    check('and so does one with the same Idempotency-Key', status == 201 and second['id'] == first['id'], second)
    status, _, _ = s.call('POST', '/v1/leases/r', headers={'Idempotency-Key': 'order 8'})
    check('another key is another client', status == 409, status)
    s.call('DELETE', '/v1/leases/r', headers={'Dibs-Lease': first['id']})


def test_waiting(s):
    held = s.call('POST', '/v1/leases/w')[2]
    threads = []
    for i in range(3):
        threads.append(begin(s.call, 'POST', '/v1/leases/w', {'wait': '20s', 'owner': f'o{i}'}))
        wait_until(lambda i=i: states_of(s, 'w').count('waits') == i + 1)
    check('three wait', states_of(s, 'w') == ['holds'] + ['waits'] * 3, states_of(s, 'w'))
    order = []
    for i in range(3):
        s.call('DELETE', '/v1/leases/w', headers={'Dibs-Lease': held['id']})
        wait_until(lambda: any(got and got[0][2]['id'] != held['id'] and got[0][2]['id'] not in order
                               for _, got in threads))
        held = next(got[0][2] for _, got in threads if got and got[0][2]['id'] not in order)
        order.append(held['id'])
    for thread, _ in threads:
        thread.join()
    fences = [got[0][2]['fence'] for _, got in threads]
    check('they are served first come, first served', fences == sorted(fences) and len(set(fences)) == 3, fences)
    s.call('DELETE', '/v1/leases/w', headers={'Dibs-Lease': held['id']})
    began = time.monotonic()
    s.call('POST', '/v1/leases/w')
    status, _, body = s.call('POST', '/v1/leases/w', {'wait': '300ms'})
    took = time.monotonic() - began
    check('a wait that is over answers 409 timeout', status == 409 and body['type'] == '/problems/timeout' and took < 10,
          status, body, took)


def test_hanging_up(s):
    held = s.call('POST', '/v1/leases/h')[2]
    leaver = s.connect()
    leaver.request('POST', '/v1/leases/h', body='{"wait":"1m","owner":"leaver"}')
    check('a client waits', wait_until(lambda: states_of(s, 'h') == ['holds', 'waits']), states_of(s, 'h'))
    leaver.sock.close()
    check('it hangs up and is out of the line', wait_until(lambda: states_of(s, 'h') == ['holds']), states_of(s, 'h'))
    s.call('DELETE', '/v1/leases/h', headers={'Dibs-Lease': held['id']})
    check('nobody holds the name then', wait_until(lambda: states_of(s, 'h') == []), states_of(s, 'h'))


def test_stopping_in_line():
    """Many requests with one id: one is being done when the server stops, others follow it."""
    s = Server()
    held = s.call('POST', '/v1/leases/line')[2]
    id_ = '%032x' % 78
    clients = [send(s, 'POST', '/v1/leases/line', {'wait': '20s', 'id': id_})]
    wait_until(lambda: states_of(s, 'line') == ['holds', 'waits'])
    clients += [send(s, 'PATCH', '/v1/leases/line', {}, {'Dibs-Lease': id_}) for _ in range(200)]
    time.sleep(0.1)
    s.call('DELETE', '/v1/leases/line', headers={'Dibs-Lease': held['id']})
    first = [client.getresponse().status for client in clients[:2]]
    check('the server ends with 0 while one of them is being done', s.stop() == 0)
    rest = {client.getresponse().status for client in clients[2:]}
    check('and each is answered', first == [201, 200] and rest <= {200, 503}, first, rest)


def test_stopping_with_half_a_request():
    s = Server()
    with contextlib.closing(s.connect()) as half, contextlib.closing(s.connect()) as rest:
        for client in (half, rest):
            client.putrequest('POST', '/v1/leases/half')
            client.putheader('Content-Length', '2')
            client.endheaders(b'{')
        s.call('GET', '/healthz')
        time.sleep(0.1)
        began = time.monotonic()
        s.process.terminate()
        rest.send(b'}')
        answer = rest.getresponse()
        check('a request that is sent to its end while the server stops is answered', answer.status in (201, 503),
              answer.status)
        check('one that is not does not hold the server up', s.stop() == 0 and time.monotonic() - began < 8)


def test_failing_in_line():
    """Many requests with one id cannot begin: the stack of the server does not grow with them."""
    s = Server(limits=[(resource.RLIMIT_STACK, 256 << 10)])
    held = s.call('POST', '/v1/leases/failing')[2]
    id_ = '%032x' % 79
    clients = [send(s, 'POST', '/v1/leases/failing', {'wait': '20s', 'id': id_})]
    wait_until(lambda: states_of(s, 'failing') == ['holds', 'waits'])
    clients += [send(s, 'PATCH', '/v1/leases/%0a', {}, {'Dibs-Lease': id_}) for _ in range(500)]
    time.sleep(0.1)
    s.call('DELETE', '/v1/leases/failing', headers={'Dibs-Lease': held['id']})
    statuses = [client.getresponse().status for client in clients]
    check('requests that fail one after the other are answered', statuses == [201] + [400] * 500, set(statuses))
    check('and the server ends with 0', s.stop() == 0)


@contextlib.contextmanager
def busy_loop(s):
    """The daemon reads large bodies meanwhile, and does nothing else."""
    body = '[' + '1,' * 900_000 + '1'
    readers = [s.connect() for _ in range(8)]
    for reader in readers:
        reader.putrequest('POST', '/v1/leases/busy')
        reader.putheader('Content-Length', str(len(body) + 1))
        reader.endheaders(body.encode())
    time.sleep(1)
    for reader in readers:
        reader.send(b']')
    yield
    check('no large body is taken', all(reader.getresponse().status == 400 for reader in readers))


def test_hanging_up_with_an_answer():
    """The answer of a claim and its client's hanging up reach the daemon's loop together."""
    s = Server()
    s.call('POST', '/v1/kinds/together/tasks', {'payload': 'x', 'delay': '500ms'})
    client = send(s, 'POST', '/v1/kinds/together/claims', {'wait': '20s'})
    time.sleep(0.2)
    with blocked_store() as store:
        time.sleep(1.5)  # the claim is at the store
        with busy_loop(s):
            time.sleep(0.1)
            store.execute('ROLLBACK')
            time.sleep(0.3)
            client.close()
    check('the server survives it', s.stop() == 0)


def test_full_pool():
    """One that waits for a task stays in its queue while no thread is free for it."""
    s = Server('--threads', '1')
    client = send(s, 'POST', '/v1/kinds/full/claims', {'wait': '60s'})
    time.sleep(0.2)
    with blocked_store():
        # With a key each has a call of its own.
        others = [send(s, 'POST', '/v1/kinds/full/tasks', {'payload': 'x'}, {'Idempotency-Key': f'k{i}'}) for i in range(POOL)]
        check('more are refused', wait_until(lambda: s.call('GET', '/readyz')[0] == 503))
        time.sleep(1.5)  # the claim is due
    statuses = [other.getresponse().status for other in others]
    answer = client.getresponse()
    check('all that were taken are done', statuses.count(201) > POOL / 2, set(statuses))
    check('and the one that waited has a task', answer.status == 200 and len(json.load(answer)['tasks']) == 1, answer.status)
    check('and so has the next one', len(claim(s, 'full', wait='20s')) == 1)
    check('the server ends with 0', s.stop() == 0)


def test_stopping_with_a_blocked_store():
    """TERM: more requests wait for the store than can be done in time."""
    s = Server('--threads', '2')
    with blocked_store():
        clients = [send(s, 'POST', '/v1/kinds/stuck/tasks', {'payload': 'x'}) for _ in range(100)]
        clients += [send(s, 'POST', '/v1/kinds/stuck/claims', {'wait': '60s'}) for _ in range(100)]
        clients += [send(s, 'POST', f'/v1/leases/stuck{n}', {}) for n in range(20)]
        time.sleep(0.2)
        began = time.monotonic()
        check('the server ends with 0', s.stop() == 0)
        took = time.monotonic() - began
    check('in time', took < 25, took)
    statuses = [client.getresponse().status for client in clients]
    check('and each request is answered', set(statuses) <= {503, 504}, set(statuses), took)


def test_keeping_at_least(s):
    """ShedLock's lockAtLeastFor: counted from the grant."""
    lease = s.call('POST', '/v1/leases/least', {'ttl': '1m'})[2]
    time.sleep(1)
    path, mine = '/v1/leases/least?at_least=', {'Dibs-Lease': lease['id']}
    for _ in range(2):  # a repeat changes nothing
        status, _, body = s.call('DELETE', path + '30s', headers=mine)
        rows = s.call('GET', '/v1/leases/least')[2]['leases']
        check('a name is kept until it was held for so long', status == 204 and [one['state'] for one in rows] == ['holds'] and
              0 < rows[0]['left_ms'] <= 29000, status, body, rows)
    status, _, body = s.call('DELETE', path + '10ms&keep=45s', headers=mine)
    left_ms = s.call('GET', '/v1/leases/least')[2]['leases'][0]['left_ms']
    check('with keep the later end counts', status == 204 and 29000 < left_ms <= 45000, status, left_ms)
    status, _, body = s.call('DELETE', path + '1s', headers=mine)
    check('one that was held for so long is free at once', status == 204 and states_of(s, 'least') == [], status, body)
    status, _, body = s.call('DELETE', path + '30s', headers=mine)
    check('and is lost: 410', status == 410, status, body)
    for wrong in ('-1s', 'x', '2d'):
        check(f'at_least={wrong} is refused', s.call('DELETE', path + wrong, headers=mine)[0] == 400)


def test_keeping(s):
    lease = s.call('POST', '/v1/leases/k')[2]
    status, _, _ = s.call('DELETE', '/v1/leases/k?keep=2s', headers={'Dibs-Lease': lease['id']})
    check('a name is kept for a while', status == 204 and s.call('POST', '/v1/leases/k')[0] == 409, status)
    began = time.monotonic()
    status, _, body = s.call('POST', '/v1/leases/k', {'wait': '20s'})
    check('and then it is free', status == 201 and 0.5 < time.monotonic() - began < 15, status, body)
    status, _, body = s.call('POST', '/v1/leases/d', {'ttl': '500ms', 'delay': '2s'})
    check('with a delay the caller counts on the ttl alone', status == 201 and body['left_ms'] <= 500, body)
    time.sleep(0.7)
    check('and the name is free only after both', s.call('POST', '/v1/leases/d')[0] == 409)
    status, _, _ = s.call('POST', '/v1/leases/d', {'wait': '20s'})
    check('or so', status == 201, status)


def repeated_elsewhere(s, other):
    """A client hangs up at one daemon, and continues with its id at another one."""
    held = s.call('POST', '/v1/leases/elsewhere')[2]
    id_ = '%032x' % 91
    left = send(s, 'POST', '/v1/leases/elsewhere', {'wait': '20s', 'id': id_})
    wait_until(lambda: states_of(s, 'elsewhere') == ['holds', 'waits'])
    thread, got = begin(other.call, 'POST', '/v1/leases/elsewhere', {'wait': '20s', 'id': id_})
    time.sleep(0.5)  # the other daemon's request is the later one, and gets the name
    s.call('DELETE', '/v1/leases/elsewhere', headers={'Dibs-Lease': held['id']})
    thread.join()
    left.close()
    time.sleep(0.5)  # the first daemon has cancelled what waited
    status, _, body = other.call('PATCH', '/v1/leases/elsewhere', headers={'Dibs-Lease': id_})
    check('a client that continues elsewhere keeps its lease',
          got[0][0] == 201 and status == 200 and body['fence'] == got[0][2]['fence'], got, status, body)
    other.call('DELETE', '/v1/leases/elsewhere', headers={'Dibs-Lease': id_})


def test_two_daemons(s):
    other = Server()
    lease = s.call('POST', '/v1/leases/two')[2]
    status, _, body = other.call('PATCH', '/v1/leases/two', headers={'Dibs-Lease': lease['id']})
    check('another daemon renews the lease', status == 200 and body['fence'] == lease['fence'], status, body)
    thread, got = begin(s.call, 'POST', '/v1/leases/two', {'wait': '20s'})
    wait_until(lambda: 'waits' in states_of(s, 'two'))
    check('another daemon releases it', other.call('DELETE', '/v1/leases/two', headers={'Dibs-Lease': lease['id']})[0] == 204)
    thread.join()
    check('and a client of the first one gets it', got[0][0] == 201 and got[0][2]['fence'] > lease['fence'], got)
    repeated_elsewhere(s, other)
    lease = other.call('POST', '/v1/leases/killed')[2]
    other.stop(signal.SIGKILL)
    status, _, body = s.call('PATCH', '/v1/leases/killed', headers={'Dibs-Lease': lease['id']})
    check('the lease of a killed daemon lives', status == 200 and body['fence'] == lease['fence'], status, body)
    s.call('DELETE', '/v1/leases/killed', headers={'Dibs-Lease': lease['id']})


# ---- Records ----

def test_records(s):
    path = '/v1/records/r%201'
    check('no record yet', s.call('GET', path)[0] == 404)
    check('a write needs a guard: 428', s.call('PUT', path, b'x')[0] == 428)
    status, headers, _ = s.call('PUT', path, b'\x00\xff1', {'If-None-Match': '*'})
    check('a record is created', status == 204 and 'etag' in headers, status, headers)
    check('not twice: 412', s.call('PUT', path, b'2', {'If-None-Match': '*'})[0] == 412)
    status, headers, body = s.call('GET', path)
    tag = headers['etag']
    check('it is read byte by byte', status == 200 and body == b'\x00\xff1', body)
    check('the same version need not be sent again: 304', s.call('GET', path, headers={'If-None-Match': tag})[0] == 304)
    check('the first of two devices saves', s.call('PUT', path, b'one', {'If-Match': tag})[0] == 204)
    status, headers, body = s.call('PUT', path, b'two', {'If-Match': tag})
    check('the second one gets 412 and the present version', status == 412 and headers['etag'] != tag, status, headers)
    check('an empty value is a value', s.call('PUT', path, b'', {'If-Match': headers['etag']})[0] == 204
          and s.call('GET', path)[2] == b'')
    old, new = {'Dibs-Lease': 'a' * 32, 'Dibs-Fence': '5'}, {'Dibs-Lease': 'b' * 32, 'Dibs-Fence': '6'}
    check('a fence guards', s.call('PUT', path, b'old', old)[0] == 204)
    check('a newer holder seals', s.call('POST', path + '/seal', headers=new)[2] == b'old')
    status, headers, body = s.call('PUT', path, b'late', old)
    check('the late writer gets 409 stale and the newer fence',
          status == 409 and body['type'] == '/problems/stale' and headers.get('dibs-fence') == '6', status, headers)
    check('half a proof is refused', s.call('PUT', path, b'x', {'Dibs-Fence': '7'})[0] == 400)
    check('it is removed', s.call('DELETE', path, headers=new)[0] == 204 and s.call('GET', path)[0] == 404)


# ---- Stock ----

def test_stock(s):
    check('a stock is set', s.call('PUT', '/v1/stocks/seats', {'limit': 50})[2] == {'key': 'seats', 'used': 0, 'limit': 50})
    results = []

    def take(i):
        results.append(s.call('PUT', f'/v1/stocks/seats/claims/c{i}')[0])
    threads = [threading.Thread(target=take, args=(i,)) for i in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check('of 100 clients 50 get a seat', results.count(201) == 50 and results.count(409) == 50, results)
    check('and 50 are used', s.call('GET', '/v1/stocks/seats')[2]['used'] == 50)
    mine = next(i for i in range(100) if s.call('PUT', f'/v1/stocks/seats/claims/c{i}')[0] == 200)
    check('a claim that is put again counts once', s.call('GET', '/v1/stocks/seats')[2]['used'] == 50)
    status, _, body = s.call('DELETE', f'/v1/stocks/seats/claims/c{mine}')
    check('it is given back', status == 200 and body['used'] == 49, status, body)
    status, _, body = s.call('PUT', f'/v1/stocks/seats/claims/c{mine}')
    check('and never counts again: 412', status == 412, status, body)
    check('no such stock: 404', s.call('PUT', '/v1/stocks/none/claims/x')[0] == 404)
    check('a limit below what is used: 409', s.call('PUT', '/v1/stocks/seats', {'limit': 3})[0] == 409)


def test_counters(s):
    check('no such counter: 404', s.call('GET', '/v1/counters/likes')[0] == 404)
    status, _, body = s.call('POST', '/v1/counters/likes', {})
    check('an addition', status == 200 and body == {'key': 'likes', 'delta': 1, 'level': 'durable'}, status, body)

    def add(i):
        s.call('POST', '/v1/counters/likes', {'delta': i, 'level': 'buffered' if i % 2 else 'durable'})
    threads = [threading.Thread(target=add, args=(i,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    body = s.call('GET', '/v1/counters/likes')[2]
    check('all clients were counted', body['value'] == 781 and body['stored'] + body['buffered'] == 781, body)
    check('the buffered ones are written', wait_until(lambda: s.call('GET', '/v1/counters/likes')[2]['stored'] == 781))
    for i in range(5):
        s.call('POST', f'/v1/counters/page%2F{i}', {'delta': -i})
    body = s.call('GET', '/v1/counters?prefix=page/&limit=3')[2]
    check('a page', body == {'counters': [{'key': f'page/{i}', 'value': -i} for i in range(3)], 'next': 'page/2'}, body)
    body = s.call('GET', '/v1/counters?prefix=page/&after=page/2&limit=3')[2]
    check('the next page', [one['key'] for one in body['counters']] == ['page/3', 'page/4'] and body['next'] is None, body)
    s.call('POST', '/v1/counters/full', {'delta': 2 ** 63 - 1})
    check('a sum that does not fit: 409', s.call('POST', '/v1/counters/full', {})[0] == 409)
    check('a wrong level: 400', s.call('POST', '/v1/counters/likes', {'level': 'fast'})[0] == 400)


def test_quotas(s):
    answers = [s.call('POST', '/v1/quotas/mail', {'limit': 3, 'per': '1h'})[2] for _ in range(4)]
    check('three are allowed', [one['allowed'] for one in answers] == [True, True, True, False], answers)
    check('and the next one later', 1000000 < answers[3]['retry_ms'] <= 1200000 and answers[0]['retry_ms'] == 0, answers)
    check('more than the limit: 400', s.call('POST', '/v1/quotas/mail', {'limit': 3, 'per': '1h', 'amount': 4})[0] == 400)
    check('no limit: 400', s.call('POST', '/v1/quotas/mail', {'per': '1h'})[0] == 400)


# ---- Tasks ----

def claim(s, kind, **members):
    return s.call('POST', f'/v1/kinds/{kind}/claims', members)[2]['tasks']


def test_tasks(s):
    status, _, body = s.call('POST', '/v1/kinds/mail/tasks', {'payload': 'hi', 'unique': 'u'})
    check('a task is added', status == 201 and body['status'] == 'OK', status, body)
    nr = body['task']
    status, _, body = s.call('POST', '/v1/kinds/mail/tasks', {'payload': 'hi', 'unique': 'u'})
    check('an unfinished one has this text: 200', status == 200 and body == {'task': nr, 'status': 'REPLAY'}, status, body)
    tasks = claim(s, 'mail', timeout='20s')
    check('it is claimed', len(tasks) == 1 and tasks[0]['task'] == nr and tasks[0]['payload'] == 'hi', tasks)
    held = {'task': nr, 'fence': tasks[0]['fence']}
    check('and nobody else gets it', claim(s, 'mail') == [])
    body = s.call('POST', '/v1/kinds/mail/extensions', {'tasks': [held], 'timeout': '30s'})[2]
    check('its claim is extended', body['tasks'] == [{'task': nr, 'status': 'OK'}], body)
    late = dict(held, fence=held['fence'] - 1)
    body = s.call('POST', '/v1/kinds/mail/results', {'tasks': [late]})[2]
    check('an older fence is refused', body['tasks'][0]['status'] == 'STALE', body)
    body = s.call('POST', '/v1/kinds/mail/results', {'tasks': [dict(held, outcome='next', phase='two')]})[2]
    check('it goes to the next phase', body['tasks'][0]['status'] == 'OK', body)
    check('where only those who want this phase get it', claim(s, 'mail', phase='three') == [])
    tasks = claim(s, 'mail', phase='two')
    check('and they do', len(tasks) == 1 and tasks[0]['phase'] == 'two' and tasks[0]['fence'] > held['fence'], tasks)
    end = {'task': nr, 'fence': tasks[0]['fence'], 'text': 'well'}
    body = s.call('POST', '/v1/kinds/mail/results', {'tasks': [end]})[2]
    check('it is done', body['tasks'][0]['status'] == 'OK', body)
    body = s.call('POST', '/v1/kinds/mail/results', {'tasks': [end]})[2]
    check('a repeated end finds itself', body['tasks'][0]['status'] == 'OK', body)


def test_texts_of_ends(s):
    trace = 'Traceback:\n\tline 1\r\n\x1b[31mé' + 'x' * 5000
    for outcome in ['done', 'fail', 'dead']:
        s.call('POST', f'/v1/kinds/trace-{outcome}/tasks', {'payload': 'x', 'max_failures': 5})
        task = claim(s, f'trace-{outcome}')[0]
        end = {'task': task['task'], 'fence': task['fence'], 'outcome': outcome, 'text': trace, 'delay': 0}
        status, _, body = s.call('POST', f'/v1/kinds/trace-{outcome}/results', {'tasks': [end]})
        check(f'the text of {outcome} may have lines, and be long', status == 200 and body['tasks'][0]['status'] == 'OK', body)
    task = claim(s, 'trace-fail', wait='20s')[0]
    check('the end of it is kept', task.get('error') == trace.encode()[-4096:].decode(errors='ignore'), task)


def test_extensions(s):
    s.call('POST', '/v1/kinds/short/tasks', {'payload': 'x'})
    task = claim(s, 'short', timeout='1m')[0]
    held = {'task': task['task'], 'fence': task['fence']}
    body = s.call('POST', '/v1/kinds/short/extensions', {'tasks': [held], 'timeout': '500ms', 'phase': 'two'})[2]
    check('a claim is extended with a phase', body['tasks'][0]['status'] == 'OK', body)
    tasks = claim(s, 'short', wait='10s')
    check('for the time that the request says', len(tasks) == 1 and tasks[0]['phase'] == 'two', tasks)


def test_waiting_for_tasks(s):
    thread, got = begin(s.call, 'POST', '/v1/kinds/later/claims', {'wait': '20s', 'limit': 5})
    time.sleep(0.3)
    check('a claim waits', not got)
    s.call('POST', '/v1/kinds/later/tasks', {'tasks': [{'payload': 'x'}, {'payload': {'base64': 'AP8='}}]})
    thread.join()
    tasks = got[0][2]['tasks']
    check('and gets what is added', [t['payload'] for t in tasks] == ['x', {'base64': 'AP8='}], tasks)
    began = time.monotonic()
    status, _, body = s.call('POST', '/v1/kinds/later/claims', {'wait': '300ms'})
    check('a wait that is over answers 200 with none', status == 200 and body == {'tasks': []}, status, body)
    check('in time', time.monotonic() - began < 10)
    leaver = s.connect()
    leaver.request('POST', '/v1/kinds/left/claims', body='{"wait":"1m"}')
    time.sleep(0.3)
    leaver.sock.close()
    time.sleep(0.3)
    s.call('POST', '/v1/kinds/left/tasks', {'payload': 'y'})
    check('one that left takes none', wait_until(lambda: len(claim(s, 'left')) == 1))


def test_leaving_as_tasks_come(s):
    """The last one of a queue leaves in the moment in which a task of its kind is added."""
    def come_and_go(n):
        for i in range(60):
            client = send(s, 'POST', f'/v1/kinds/moment{n}-{i}/claims', {'wait': '10s'})
            time.sleep(0.024 + i % 7 / 1000)  # its hanging up is watched for
            adding = send(s, 'POST', f'/v1/kinds/moment{n}-{i}/tasks', {'payload': 'x'})
            client.close()
            done.append(adding.getresponse().status)
    done = []
    threads = [threading.Thread(target=come_and_go, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check('the server survives it', done == [201] * 480 and s.call('GET', '/healthz')[0] == 200, set(done))


# ---- Bad input ----

def test_bad_input(s):
    for body, word in [('{', 'JSON'), ('[]', 'object'), ('{"tll":1}', 'did you mean "ttl"'), ('{"ttl":"x"}', 'ttl'),
                       ('{"ttl":1}', 'ttl'), ('{"ttl":1.5}', 'ttl'), ('{"ttl":true}', 'ttl'), ('{"owner":7}', 'owner'),
                       ('{"id":"xyz"}', 'id'), ('{"mode":"all"}', 'mode'), ('{"mode":"counted"}', 'slots'),
                       ('{"ttl":1000,"ttl":2000}', 'JSON'), ('{"owner":"a\\u0000b"}', 'JSON'),
                       ('{"slots":99999999999999999999}', 'JSON')]:
        status, _, answer = s.call('POST', '/v1/leases/bad', body)
        check(f'{body[:30]} is 400 and says why', status == 400 and word in answer['detail'], status, answer)
    check('nothing was acquired', states_of(s, 'bad') == [])
    status, _, answer = s.call('POST', '/v1/leases/bad?wiat=3')
    check('an unknown parameter is refused', status == 400 and 'wiat' in answer['detail'], status, answer)
    status, headers, _ = s.call('PUT', '/v1/leases/bad')
    check('a wrong method is 405 with Allow', status == 405 and headers.get('allow') == 'GET, HEAD, POST, PATCH, DELETE', headers)
    check('and so is a rare one', s.call('TRACE', '/v1/leases/bad')[0] == 405)
    check('no such path is 404', s.call('GET', '/v2')[0] == 404)
    status, _, answer = s.call('DELETE', '/v1/leases/bad')
    check('a missing header is named', status == 400 and answer['detail'] == 'Dibs-Lease: it is missing; give it as a header', answer)
    status, _, answer = s.call('POST', '/v1/leases/bad', {'ttl': 30})
    check('a number is milliseconds, and the answer says so', status == 400 and answer['detail'].startswith('ttl: give a duration from') and
          'a number is in milliseconds' in answer['detail'], answer)
    status, _, answer = s.call('POST', '/v1/leases/bad', 'x' * (3 << 20))
    check('a body that is too large is 413', status == 413, status)
    status, _, answer = s.call('GET', '/readyz')
    check('the server still answers', status == 200, status, answer)


# ---- The server ----

def test_openapi(s):
    status, _, body = s.call('GET', '/openapi.json')
    check('openapi.json is served', status == 200 and body['openapi'] == '3.1.0', status)
    ids = [route['operationId'] for path in body['paths'].values() for route in path.values()]
    check('each operation has an id of its own', len(ids) == len(set(ids)), ids)


def test_problems(s):
    unexplained = [kind for kind in s.problems if not s.call('GET', kind)[2].get('meaning')]
    check('each kind of problem that was answered is explained', '/problems/held' in s.problems and not unexplained,
          unexplained)
    check('another one is not', s.call('GET', '/problems/none')[0] == 404)
    listed = s.call('GET', '/problems')[2]['problems']
    words = {one['problem'] for one in listed}
    check('all are listed', len(listed) == len(words) and {kind.removeprefix('/problems/') for kind in s.problems} <= words, words)
    empty = [one for one in listed if not all(one[key] for key in ('meaning', 'cause', 'next_step')) or not 400 <= one['status'] < 600]
    check('each with its status, meaning, cause and next step', not empty, empty)


def test_stop(s):
    held = s.call('POST', '/v1/leases/s')[2]
    thread, got = begin(s.call, 'POST', '/v1/leases/s', {'wait': '1m'})
    other, tasks = begin(s.call, 'POST', '/v1/kinds/none/claims', {'wait': '1m'}) if not LEASES_ONLY else (None, [])
    wait_until(lambda: 'waits' in states_of(s, 's'))
    began = time.monotonic()
    code = s.stop()
    thread.join()
    check('TERM ends the server with 0', code == 0 and time.monotonic() - began < 10, code)
    check('a client that waits gets 503 with Retry-After', got[0][0] == 503 and 'retry-after' in got[0][1]
          and got[0][2]['type'] == '/problems/stopping', got)
    if other:
        other.join()
        check('and so does one that waits for a task', tasks[0][0] == 503, tasks)
    again = Server()
    status, _, body = again.call('PATCH', '/v1/leases/s', headers={'Dibs-Lease': held['id']})
    check('its leases live on', status == 200 and body['fence'] == held['fence'], status, body)
    again.call('DELETE', '/v1/leases/s', headers={'Dibs-Lease': held['id']})
    again.stop()


def test_unix_socket():
    """A socket that nobody listens at is replaced; one of a program that is too busy is not."""
    path = f'{FOLDER}/socket'
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as other, contextlib.ExitStack() as clients:
        other.bind(path)
        other.listen(0)
        for _ in range(4):  # until its backlog is full
            client = clients.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
            client.setblocking(False)
            client.connect_ex(path)
        done = subprocess.run([DIBS, 'serve', '--store', STORE, '--listen', f'unix:{path}'], capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)
        check('the socket of a busy program is not taken', done.returncode != 0 and 'another program' in done.stderr, done)
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
            client.setblocking(False)
            code = client.connect_ex(path)
            check('and still leads there', code == errno.EAGAIN, code)
    s = Server('--listen', f'unix:{path}')
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(path)
        client.sendall(b'GET /healthz HTTP/1.0\r\n\r\n')
        check('one that was left behind is replaced', b' 200 ' in client.recv(1000))
    s.process.terminate()
    check('the server ends with 0', s.process.wait(PATIENCE_S) == 0)


def test_unsupported(s):
    status, _, body = s.call('GET', '/v1/records/x')
    check('what the store lacks is 501, and says so', status == 501 and 'database' in body['detail'], status, body)
    check('stocks, too', s.call('GET', '/v1/stocks/x')[0] == 501)
    check('tasks, too', s.call('POST', '/v1/kinds/x/claims')[0] == 501)


def main():
    s = Server()
    for test in [test_lease, test_names, test_repeats, test_waiting, test_hanging_up, test_keeping, test_keeping_at_least, test_two_daemons]:
        test(s)
    for test in [test_unsupported] if LEASES_ONLY else [test_records, test_stock, test_counters, test_quotas, test_tasks, test_texts_of_ends, test_extensions,
                                                        test_waiting_for_tasks, test_leaving_as_tasks_come]:
        test(s)
    for test in [test_unix_socket, test_stopping_with_half_a_request, test_stopping_in_line, test_failing_in_line] + ([
            test_hanging_up_with_an_answer, test_full_pool, test_stopping_with_a_blocked_store] if SQLITE else []):
        test()
    for test in [test_bad_input, test_openapi, test_problems, test_stop]:
        test(s)
    return end()


if __name__ == '__main__':
    sys.exit(main())

# SPDX-License-Identifier: MIT
"""What dibs serve sends to those that watch: events, series and the files of the dashboard.

usage: events_test.py DIBS [URI]
"""
import gzip
import hashlib
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.parse

import serve_test as t
from checks import PATIENCE_S, check, end, wait_until

CALM_S = 2.5  # long enough for several looks of the watcher
LONG_NAMES = 200  # of which a list has over 100 KB
SLOW_TURNS = 2  # each changes 8 such lists: while it does not read


class Stream:
    """The events of some lists; a thread reads them."""

    def __init__(self, s, watch, headers=None, more=''):
        self.connection = http.client.HTTPConnection('127.0.0.1', s.port, timeout=PATIENCE_S)
        self.connection.request('GET', f"/v1/events?watch={urllib.parse.quote(watch, safe='')}{more}", headers=headers or {})
        self.answer = self.connection.getresponse()
        self.status, self.type = self.answer.status, self.answer.getheader('content-type')
        self.events, self.over = [], False
        self.body = self.answer.read() if self.status != 200 else None
        if self.status == 200:
            threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        event = {}
        try:
            while line := self.answer.readline():
                line = line.decode().rstrip('\n')
                if not line:
                    if 'data' in event:
                        self.events.append((event['event'], event['id'], json.loads(event['data'])))
                    event = {}
                elif not line.startswith(':'):
                    name, value = line.split(': ', 1)
                    event[name] = value
        except (OSError, ValueError, AttributeError):
            pass
        self.over = True

    def find(self, kind, condition=lambda data: True):
        """The first event of the kind with the condition, once it is there."""
        found = []
        wait_until(lambda: found.extend(one for one in self.events if one[0] == kind and condition(one[2])) or found)
        return found[0][2] if found else None

    def close(self):
        self.connection.sock.shutdown(socket.SHUT_RDWR) if self.connection.sock else None
        self.answer.close()
        self.connection.close()


def opened(s, watch):
    """A stream that the daemon accepts, perhaps only when it has seen that others are gone."""
    streams = []
    wait_until(lambda: streams.append(Stream(s, watch)) or streams[-1].status == 200)
    for one in streams[:-1]:
        one.close()
    check(f'{watch[:30]} is watched', streams[-1].status == 200, streams[-1].status)
    return streams[-1]


def sets(name):
    return lambda data: any(row.get('name') == name for row in data['set'])


def test_changes(s):
    kept = s.call('POST', '/v1/leases/e%2Fkept', {'ttl': '1m', 'owner': 'ann'})[2]
    stream = Stream(s, '/v1/leases?prefix=e/')
    first = stream.find('list')
    check('it is a stream of events', stream.type == 'text/event-stream', stream.type)
    check('the list comes first, as GET has it', [row['name'] for row in first['body']['names']] == ['e/kept'], first)
    check('it names what was watched', first['watch'] == '/v1/leases?prefix=e/', first)
    time.sleep(CALM_S)
    check('a lease that only grows older makes no event', len(stream.events) == 1, stream.events)
    s.call('PATCH', '/v1/leases/e%2Fkept', {'ttl': '10m'}, {'Dibs-Lease': kept['id']})
    change = stream.find('change', sets('e/kept'))
    check('a renewal makes one', change and change['set'][0]['leases'][0]['left_ms'] > 60000, change)
    made = s.call('POST', '/v1/leases/e%2Fnew', {'ttl': '1m'})[2]
    check('a new lease makes one', stream.find('change', sets('e/new')) is not None)
    s.call('DELETE', '/v1/leases/e%2Fnew', None, {'Dibs-Lease': made['id']})
    check('a release makes one', stream.find('change', lambda data: 'e/new' in data['removed']) is not None)
    s.call('POST', '/v1/leases/other', {'ttl': '1m'})
    time.sleep(CALM_S)
    check('other names make none', 'other' not in str(stream.events), stream.events)
    stream.close()


def test_resuming(s):
    stream = Stream(s, '/v1/leases?prefix=r/')
    stream.find('list')
    s.call('POST', '/v1/leases/r%2F1', {'ttl': '1m'})
    stream.find('change', sets('r/1'))
    last = stream.events[-1][1]
    stream.close()
    s.call('POST', '/v1/leases/r%2F2', {'ttl': '1m'})
    again = Stream(s, '/v1/leases?prefix=r/', {'Last-Event-ID': last})
    check('a client that connects again gets what it missed', again.find('change', sets('r/2')) is not None, again.events)
    check('and no list', all(kind == 'change' for kind, _, _ in again.events), again.events)
    again.close()
    for odd in ['00000000-1', 'x', last.split('-')[0] + '-999999', last + 'x' * 40]:
        other = Stream(s, '/v1/leases?prefix=r/', {'Last-Event-ID': odd})
        check(f'with another id ({odd[:12]}) it gets the list', other.find('list') is not None, other.events)
        other.close()


def test_other_lists(s):
    stream = Stream(s, '/v1/kinds /v1/stocks /v1/tasks?limit=5 /v1/history /v1/tiers /v1/flags /v1/cron')
    names = ['/v1/kinds', '/v1/stocks', '/v1/tasks?limit=5', '/v1/history', '/v1/cron']
    if not t.LEASES_ONLY:
        for name in names:
            check(f'{name} can be watched', stream.find('list', lambda data, name=name: data['watch'] == name) is not None)
    problem = stream.find('problem', lambda data: data['watch'] == '/v1/tiers')
    check('what the store lacks is a problem with its reason', problem and problem['problem']['status'] == 501, problem)
    if not t.LEASES_ONLY:
        s.call('POST', '/v1/kinds/watched/tasks', {'payload': 'x'})
        check('a new task changes the kinds', stream.find('change', lambda data: any(
            row.get('kind') == 'watched' and row.get('ready') == 1 for row in data['set'])) is not None)
        s.call('PUT', '/v1/stocks/watched', {'limit': 3})
        check('a new stock makes an event', stream.find('change', lambda data: any(
            row.get('key') == 'watched' for row in data['set'])) is not None)
    stream.close()


def test_tiers():
    """Counts and measurements of tiers change with each reading: alone they make few events."""
    s = t.Server(store=f'sqlite://{t.FOLDER}/first.db,sqlite://{t.FOLDER}/last.db')
    s.call('POST', '/v1/leases/x', {'ttl': '10m'})
    stream = Stream(s, '/v1/tiers')
    check('tiers can be watched', stream.find('list') is not None)
    began = time.monotonic()
    time.sleep(3 * CALM_S)
    events, passed_s = len(stream.events), time.monotonic() - began
    check('a calm store sends its tiers seldom', events <= 3 + passed_s / 2, events, passed_s)
    s.call('PUT', '/v1/breakers/sqlite', {'mode': 'open'})
    check('a change is sent', stream.find('list', lambda data: data['body']['tiers'][0]['breaker_mode'] == 'open') is not None, stream.events[-1:])
    stream.close()
    s.stop()


def test_refusals(s):
    for watch, status in [('/v1/leases/x', 400), ('/v1/nothing', 404), ('/healthz', 400), ('/v1/leases?limit=1000', 400),
                          ('/v1/leases?limit=x', 400), ('/v1/leases?prefix=%zz', 400), ('/v1/leases?odd=1', 400),
                          (' '.join(['/v1/kinds'] * 9), 400), ('/v1/events', 400)]:
        refused = Stream(s, watch)
        check(f'watching {watch[:30]} is {status}', refused.status == status, refused.status, refused.body)
    check('nothing to watch is 400', s.call('GET', '/v1/events')[0] == 400)
    # The daemon may not have seen yet that the clients of the tests before are gone: their lists count until then.
    streams = [opened(s, ' '.join(f'/v1/leases?prefix={i}-{j}' for j in range(8))) for i in range(8)]
    more = Stream(s, '/v1/leases?prefix=one-more')
    check('too many lists are 503', more.status == 503, more.status)
    for one in streams:
        one.close()
    check('others can be watched when those clients have left',
          wait_until(lambda: Stream(s, '/v1/leases?prefix=one-more').status == 200))


def test_hanging_up(s):
    def descriptors():
        return len(os.listdir(f'/proc/{s.process.pid}/fd'))

    wait_until(lambda: descriptors() < 60)
    streams = [Stream(s, '/v1/leases?prefix=h/') for _ in range(100)]
    check('a hundred clients watch one list', all(one.find('list') for one in streams))
    check('each has a connection, and got one list', descriptors() >= 100 and all(len(one.events) == 1 for one in streams))
    s.call('POST', '/v1/leases/h%2F1', {'ttl': '1m'})
    check('each gets the change', all(one.find('change') for one in streams))
    for one in streams:
        one.close()
    check('they are forgotten, too', wait_until(lambda: descriptors() < 60), descriptors())


def test_slow_reader():
    """It gets the newest state, however late it reads, and keeps nobody waiting."""
    s = t.Server()
    name = 'n' * 200
    ids = [s.call('POST', f'/v1/leases/{name}{i:03}', {'ttl': '1h', 'owner': 'o' * 100})[2]['id'] for i in range(LONG_NAMES)]
    slow = socket.create_connection(('127.0.0.1', s.port))
    lists = '%20'.join(f'/v1/leases?limit={200 - i}' for i in range(8))
    slow.sendall(f'GET /v1/events?watch={lists} HTTP/1.1\r\nHost: x\r\n\r\n'.encode())
    connection = s.connect()
    for turn in range(SLOW_TURNS):
        for i, key in enumerate(ids):
            s.call('PATCH', f'/v1/leases/{name}{i:03}', {'ttl': f'{turn + 2}h'}, {'Dibs-Lease': key}, connection)
    s.call('POST', '/v1/leases/a-last-one', {'ttl': '1h'})
    with open(f'/proc/{s.process.pid}/statm', encoding='ascii') as statm:
        resident = int(statm.read().split()[1]) * 4096
    got = b''
    slow.settimeout(PATIENCE_S)
    while b'a-last-one' not in got:
        part = slow.recv(1 << 20)
        if not part:
            break
        got += part
    check('a slow reader gets the newest state', b'a-last-one' in got)
    check('and the server keeps little for it', resident < 200 << 20, resident)
    slow.close()
    s.stop()


def test_stopping():
    s = t.Server()
    streams = [Stream(s, '/v1/leases') for _ in range(10)]
    check('they are listening', all(one.find('list') for one in streams))
    began = time.monotonic()
    check('a server with listeners ends', s.stop() == 0)
    check('at once', time.monotonic() - began < 8, time.monotonic() - began)
    check('their streams are over', wait_until(lambda: all(one.over for one in streams)))


def test_tokens():
    tokens = f'{t.FOLDER}/event-tokens'

    def write(*lines):
        with open(tokens, 'w', encoding='ascii') as file:
            file.write(''.join(f'{label} {scope} {prefix} sha256:{hashlib.sha256(secret.encode()).hexdigest()}\n'
                               for label, scope, prefix, secret in lines))
        os.chmod(tokens, 0o600)

    def bearer(secret):
        return {'Authorization': f'Bearer {secret}'}

    every, some, boss = 'a' * 40, 'b' * 40, 'c' * 40
    write(('all', 'read', '*', every), ('app', 'read', 'app/', some), ('boss', 'admin', '*', boss))
    s = t.Server('--tokens', tokens)
    check('the page itself needs no token', s.call('GET', '/')[0] == 200)
    check('events need one', Stream(s, '/v1/leases').status == 401)
    check('series need one', s.call('GET', '/v1/series')[0] == 401)
    watching = Stream(s, '/v1/leases', bearer(every))
    check('with a token they come', watching.find('list') is not None)
    for watch, more, status in [('/v1/leases', '', 403), ('/v1/leases', '&prefix=app/', 403), ('/v1/leases?prefix=x', '&prefix=app/', 403),
                                ('/v1/leases?prefix=app/ /v1/kinds', '&prefix=app/', 403), ('/v1/leases?prefix=app/', '&prefix=a', 403),
                                ('/v1/leases?prefix=app/', '&prefix=app/', 200), ('/v1/leases?prefix=app/x', '&prefix=app/', 200),
                                ('/v1/cron/some', '&prefix=app/', 403), ('/v1/tasks', '&prefix=app/', 403)]:
        got = Stream(s, watch, bearer(some), more)
        check(f'a token for app/ and {watch}{more}: {status}', got.status == status, got.status, got.body)
    s.call('POST', '/v1/leases/app%2Fx', {'ttl': '1m'}, bearer(boss))
    check('an action by a token with too small a scope is refused',
          s.call('DELETE', '/v1/leases/app%2Fx/holders?now=true', None, bearer(every))[0] == 403)
    check('an action is done', s.call('DELETE', '/v1/leases/app%2Fx/holders?now=true&by=all%C3%A9', None, bearer(boss))[0] == 204)
    rows = s.call('GET', '/v1/leases/app%2Fx', None, bearer(boss))[2]['leases']
    check('its author is the token, and then what it gave', [one['owner'] for one in rows if one['state'] == 'broken'] == ['boss: allé'], rows)
    check('another one', s.call('PATCH', '/v1/kinds/app%2Fmail', {'paused': True}, bearer(boss))[0] == 200)
    write(('boss', 'admin', '*', boss))
    s.process.send_signal(signal.SIGHUP)
    check('a stream ends when its token is removed', wait_until(lambda: watching.over))
    s.process.terminate()
    s.process.wait(PATIENCE_S)
    s.errors.seek(0)
    said = [json.loads(line.removeprefix('dibs: ')) for line in s.errors if line.startswith('dibs: {')]
    done = [(one['action'], one['token'], one['status']) for one in said]
    check('the log has each action, with its author',
          done == [('breakLease', 'all', 403), ('breakLease', 'boss', 204), ('setKind', 'boss', 200)], said)
    check('and what was done', said[0]['target'].endswith('now=true') and said[1]['target'].endswith('by=all%C3%A9') and said[2].get('body') == '{"paused": true}', said)


def test_series(s):
    s.call('POST', '/v1/leases/series', {'ttl': '1m'})
    got = []
    wait_until(lambda: got.append(s.call('GET', '/v1/series')[2]) or got[-1]['step'] >= 1)
    lines = {(line['name'], line['label']): line['points'] for line in got[-1]['series']}
    check('the series have the counters of the server', ('acquired', None) in lines, list(lines))
    check('one point for each step', all(len(points) == got[-1]['step'] for points in lines.values()), lines)
    newest = s.call('GET', '/v1/series?points=1')[2]
    check('only the newest points, if so requested', all(len(line['points']) == 1 for line in newest['series']), newest)
    check('at most an hour', s.call('GET', '/v1/series?points=361')[0] == 400)


def test_files(s):
    status, headers, body = s.call('GET', '/')
    check('the dashboard is at /', status == 200 and b'<!doctype html>' in body and headers['content-type'].startswith('text/html'))
    policy = headers['content-security-policy']
    check('it allows nothing from elsewhere', "default-src 'none'" in policy and 'unsafe' not in policy, policy)
    check('a browser that has it gets 304', s.call('GET', '/', None, {'If-None-Match': headers['etag']})[0] == 304)
    packed = s.call('GET', '/web/app.js', None, {'Accept-Encoding': 'gzip'})
    plain = s.call('GET', '/web/app.js')
    check('gzip is the same text', packed[1].get('content-encoding') == 'gzip' and gzip.decompress(packed[2]) == plain[2])
    check('an unknown file is 404', s.call('GET', '/web/nothing.js')[0] == 404 and s.call('GET', '/web/..%2Fx')[0] == 404)
    check('no file names another server', not any(b'http://' in one.replace(b'http://www.w3.org/', b'') or b'https://' in one
                                                  for one in (body, plain[2], s.call('GET', '/web/app.css')[2])))


def main():
    s = t.Server()
    for test in [test_changes, test_resuming, test_other_lists, test_refusals, test_hanging_up, test_series, test_files]:
        test(s)
    check('the server ends', s.stop() == 0)
    for test in [test_slow_reader, test_stopping, test_tokens, test_tiers] if t.SQLITE else [test_stopping]:
        test()
    return end()


if __name__ == '__main__':
    sys.exit(main())
